use super::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;

fn at(seconds: f64) -> Mono {
    Mono::from_secs_f64(seconds)
}

/// A request of 100 tokens of work that misses nothing and waits as long as it has to.
fn arrival(arrived_s: f64) -> Arrival {
    Arrival {
        flow: FlowId(0),
        weight: 1.0,
        arrived: at(arrived_s),
        deadline: at(f64::MAX),
        miss_s: 0.0,
        work: 100.0,
        bytes: 10,
        fresh: false,
    }
}

fn enter(queue: &mut Queue<u32>, arrival: Arrival, name: u32) -> Ticket {
    match queue.enter(arrival.arrived, arrival, name) {
        Entered::Waits { ticket, gave_way } if gave_way.is_empty() => ticket,
        other => panic!("{other:?}"),
    }
}

/// A fleet that is a function, and has an endpoint that is always busy.
struct Endless<F>(F);

fn endless<F: FnMut(&Arrival, &mut u32) -> Verdict>(offer: F) -> Endless<F> {
    Endless(offer)
}

const BUSY: EndpointId = EndpointId(7);

impl<F: FnMut(&Arrival, &mut u32) -> Verdict> Offers<u32> for Endless<F> {
    fn is_free(&self, endpoint: EndpointId, _: &Limit) -> bool {
        endpoint != BUSY
    }

    fn offer(&mut self, arrival: &Arrival, name: &mut u32, _: &Limit) -> Verdict {
        (self.0)(arrival, name)
    }
}

/// Lets `count` requests go, whatever they are; returns them in order.
fn go(queue: &mut Queue<u32>, count: usize) -> Vec<u32> {
    let mut gone = Vec::new();
    queue.pump(
        at(1e6),
        &mut endless(|_, name| {
            if gone.len() == count {
                return Verdict::Stop;
            }
            gone.push(*name);
            Verdict::Placed
        }),
    );
    gone
}

#[test]
fn arrivals_go_in_order_but_for_short_misses_within_the_bound() {
    let mut queue = Queue::new(QueueSettings::default());
    for n in 10..19 {
        enter(&mut queue, arrival(0.0), n);
    }
    assert_eq!(go(&mut queue, 9).len(), 9);
    // Ten misses of which one is a second: 0.1 s in the mean, and from three times that on a minute is lost.
    let missing = |miss_s| Arrival {
        miss_s,
        ..arrival(0.0)
    };
    enter(&mut queue, missing(1.0), 0);
    enter(&mut queue, missing(0.1), 1);
    enter(&mut queue, arrival(19.9), 2);
    enter(&mut queue, arrival(20.1), 3);
    enter(&mut queue, arrival(59.9), 4);
    enter(&mut queue, arrival(60.1), 5);
    assert_eq!(go(&mut queue, 9), [2, 1, 3, 4, 0, 5]);
    assert!(queue.is_empty() && queue.bytes() == 0);
}

#[test]
fn a_request_whose_endpoint_is_busy_is_passed_over() {
    let mut queue = Queue::new(QueueSettings::default());
    for n in 0..4 {
        enter(&mut queue, arrival(f64::from(n)), n);
    }
    let placed = queue.pump(
        at(5.0),
        &mut endless(|_, name| {
            if *name % 2 == 0 {
                Verdict::Busy(BUSY)
            } else {
                Verdict::Placed
            }
        }),
    );
    assert_eq!(placed, 2);
    assert_eq!(go(&mut queue, 9), [0, 2]);
}

#[test]
fn who_waits_for_a_busy_endpoint_is_asked_again_after_a_while() {
    let mut queue = Queue::new(QueueSettings::default());
    enter(&mut queue, arrival(0.0), 0);
    let mut offered = Vec::new();
    for now_s in [1.0, 1.1, 1.2, 1.3, 1.4] {
        queue.pump(
            at(now_s),
            &mut endless(|_: &Arrival, _: &mut u32| {
                offered.push(now_s);
                Verdict::Busy(BUSY)
            }),
        );
    }
    assert_eq!(offered, [1.0, 1.3]);
}

#[test]
fn no_fresh_request_passes_one_that_the_gate_holds() {
    let mut queue = Queue::new(QueueSettings::default());
    let fresh = |s| Arrival {
        fresh: true,
        ..arrival(s)
    };
    enter(&mut queue, fresh(0.0), 0);
    enter(&mut queue, fresh(1.0), 1);
    enter(&mut queue, arrival(2.0), 2);
    let mut offered = Vec::new();
    queue.pump(
        at(5.0),
        &mut endless(|arrival, name| {
            offered.push(*name);
            if arrival.fresh {
                Verdict::Gated
            } else {
                Verdict::Placed
            }
        }),
    );
    assert_eq!(offered, [0, 2]);
    assert_eq!(go(&mut queue, 9), [0, 1]);
}

#[test]
fn flows_share_by_weight_and_a_newcomer_goes_next() {
    let mut queue = Queue::new(QueueSettings::default());
    for n in 0..90 {
        enter(&mut queue, arrival(0.0), n);
    }
    assert_eq!(go(&mut queue, 3), [0, 1, 2]);
    let light = |s| Arrival {
        flow: FlowId(1),
        ..arrival(s)
    };
    let heavy = |s| Arrival {
        flow: FlowId(2),
        weight: 2.0,
        ..arrival(s)
    };
    for n in 100..110 {
        enter(&mut queue, light(1.0), n);
    }
    for n in 200..220 {
        enter(&mut queue, heavy(1.0), n);
    }
    let next = go(&mut queue, 12);
    let of = |range: std::ops::Range<u32>| next.iter().filter(|n| range.contains(n)).count();
    assert!(next.iter().position(|n| *n == 100).unwrap() < 2, "{next:?}");
    let shares = [of(0..90), of(100..110), of(200..220)];
    assert!(
        shares[0].abs_diff(3) <= 1 && shares[1].abs_diff(3) <= 1 && shares[2].abs_diff(6) <= 1,
        "{shares:?}"
    );
}

#[test]
fn work_counts_not_requests() {
    let mut queue = Queue::new(QueueSettings::default());
    for n in 0..40 {
        enter(&mut queue, arrival(0.0), n);
        enter(
            &mut queue,
            Arrival {
                flow: FlowId(1),
                work: 900.0,
                ..arrival(0.0)
            },
            100 + n,
        );
    }
    let next = go(&mut queue, 20);
    assert_eq!(next.iter().filter(|n| **n >= 100).count(), 2, "{next:?}");
}

/// An endpoint whose pending prefill is this, and that is given nothing more while it is above a request's limit;
/// what goes there adds an eighth of a second.
struct Filling {
    pending_s: f64,
    gone: Vec<(u32, f64)>,
}

impl Offers<u32> for Filling {
    fn is_free(&self, _: EndpointId, limit: &Limit) -> bool {
        self.pending_s <= limit.pending_s
    }

    fn offer(&mut self, _: &Arrival, name: &mut u32, limit: &Limit) -> Verdict {
        if self.pending_s > limit.pending_s {
            return Verdict::Stop;
        }
        self.gone.push((*name, self.pending_s));
        self.pending_s += 0.125;
        Verdict::Placed
    }
}

/// What goes to an endpoint that is idle at first, and how much is pending there then.
fn fill(queue: &mut Queue<u32>, now: Mono) -> Filling {
    let mut fleet = Filling {
        pending_s: 0.0,
        gone: Vec::new(),
    };
    queue.pump(now, &mut fleet);
    fleet
}

fn of_flow(flow: u64, arrived_s: f64) -> Arrival {
    Arrival {
        flow: FlowId(flow),
        ..arrival(arrived_s)
    }
}

#[test]
fn a_flood_fills_endpoints_less_while_another_flow_is_there() {
    let mut queue = Queue::new(QueueSettings::default());
    for n in 0..100 {
        enter(&mut queue, of_flow(0, 0.0), n);
    }
    assert_eq!(
        fill(&mut queue, at(0.0)).gone.len(),
        9,
        "from 0 to 8 eighths are pending"
    );
    assert!(!queue.is_flooded());
    enter(&mut queue, of_flow(1, 1.0), 100);
    let beside = fill(&mut queue, at(1.0));
    assert_eq!(beside.gone, [(100, 0.0), (9, 0.125), (10, 0.25)]);
    assert!(queue.is_flooded());
    let limits = [0, 1, 2].map(|flow| queue.limit_of(at(1.0), FlowId(flow)));
    assert_eq!(limits.map(|limit| limit.pending_s), [0.3, 1.0, 1.0]);
    assert_eq!(limits.map(|limit| limit.kv_share <= 0.9), [true, false, false]);
    assert_eq!(limits.map(|limit| limit.diverts), [false, true, true]);
    // A minute after the other was there last all is as before.
    assert_eq!(fill(&mut queue, at(62.0)).gone.len(), 9);
    assert!(!queue.is_flooded() && !queue.is_empty());
}

#[test]
fn where_a_flood_has_no_room_another_flow_still_has() {
    let mut queue = Queue::new(QueueSettings::default());
    for n in 0..50 {
        enter(&mut queue, of_flow(0, 0.0), n);
    }
    fill(&mut queue, at(0.0));
    enter(&mut queue, of_flow(1, 1.0), 100);
    let mut busy = Filling {
        pending_s: 0.5,
        gone: Vec::new(),
    };
    queue.pump(at(1.0), &mut busy);
    assert_eq!(busy.gone, [(100, 0.5)]);
    let never_more = QueueSettings {
        hold_above_s: 0.2,
        ..QueueSettings::default()
    };
    assert_eq!(never_more.limit(Standing::Floods).pending_s, 0.2);
}

#[test]
fn when_full_the_flow_that_holds_the_most_gives_way() {
    let settings = QueueSettings {
        max_requests: 3,
        max_bytes: 100,
        ..QueueSettings::default()
    };
    let mut queue = Queue::new(settings);
    for n in 0..3 {
        enter(&mut queue, arrival(f64::from(n)), n);
    }
    assert!(matches!(queue.enter(at(3.0), arrival(3.0), 3), Entered::Full(3)));
    let other = |s: f64| Arrival {
        flow: FlowId(1),
        ..arrival(s)
    };
    let Entered::Waits { gave_way, .. } = queue.enter(at(4.0), other(4.0), 4) else {
        panic!()
    };
    assert_eq!(gave_way, [2]);
    // One request against two: a second one would only turn the tables.
    assert!(matches!(queue.enter(at(5.0), other(5.0), 5), Entered::Full(5)));
    assert_eq!((queue.len(), queue.bytes()), (3, 30));
    let huge = Arrival {
        bytes: 101,
        ..other(6.0)
    };
    assert!(matches!(queue.enter(at(6.0), huge, 6), Entered::Full(6)));
}

#[test]
fn bytes_are_bounded_too() {
    let settings = QueueSettings {
        max_bytes: 100,
        ..QueueSettings::default()
    };
    let mut queue = Queue::new(settings);
    let sized = |flow, bytes| Arrival {
        flow: FlowId(flow),
        bytes,
        ..arrival(0.0)
    };
    for n in 0..4 {
        enter(&mut queue, sized(0, 25), n);
    }
    let Entered::Waits { gave_way, .. } = queue.enter(at(0.0), sized(1, 30), 9) else {
        panic!()
    };
    assert_eq!(gave_way, [3, 2]);
    assert_eq!(queue.bytes(), 80);
}

#[test]
fn time_ends_a_wait_and_so_does_leaving() {
    let mut queue = Queue::new(QueueSettings::default());
    let until = |s, deadline_s| Arrival {
        deadline: at(deadline_s),
        ..arrival(s)
    };
    enter(&mut queue, until(0.0, 10.0), 0);
    let ticket = enter(&mut queue, until(1.0, 20.0), 1);
    enter(&mut queue, until(2.0, 5.0), 2);
    assert_eq!(queue.oldest(), Some(at(0.0)));
    let mut expired = queue.expire(at(10.0));
    expired.sort_unstable();
    assert_eq!(expired, [0, 2]);
    assert_eq!(queue.leave(at(11.0), ticket), Some(1));
    assert_eq!(queue.leave(at(11.0), ticket), None);
    assert_eq!((queue.len(), queue.oldest()), (0, None));
}

#[test]
fn the_outlook_is_what_comes_true() {
    let mut queue = Queue::new(QueueSettings::default());
    let mut now_s = 0.0;
    // Ten arrivals and five departures a second, for a minute: 300 wait in the end, of 100 tokens each.
    for n in 0..600 {
        now_s = f64::from(n) / 10.0;
        enter(&mut queue, arrival(now_s), n);
        if n % 2 == 0 {
            queue.pump_one(at(now_s));
        }
    }
    let outlook = queue.outlook(&arrival(now_s), 1);
    assert_eq!(outlook.ahead, 300);
    assert!((outlook.wait_s / 60.0 - 1.0).abs() < 0.1, "{outlook:?}");
    assert!((queue.drained_in_s(1) / 60.0 - 1.0).abs() < 0.1);
    let newcomer = Arrival {
        flow: FlowId(7),
        ..arrival(now_s)
    };
    assert!(queue.outlook(&newcomer, 1).wait_s < 1.0);
}

#[test]
fn before_the_queue_was_seen_to_drain_its_prefill_says_how_long_it_takes() {
    // 1,000 prompts of 10 tokens, 0.5 ms each, that are expected to say 200: two endpoints prefill them in 0.25 s.
    let mut queue = Queue::new(QueueSettings::default());
    let tiny = Arrival {
        miss_s: 0.5e-3,
        work: 210.0,
        ..arrival(0.0)
    };
    for n in 0..1000 {
        enter(&mut queue, tiny, n);
    }
    assert!(
        (queue.drained_in_s(2) - 0.25).abs() < 1e-9,
        "{}",
        queue.drained_in_s(2)
    );
    let outlook = queue.outlook(&Arrival { miss_s: 1.0, ..tiny }, 2);
    assert!((outlook.wait_s - 0.25).abs() < 1e-9, "{outlook:?}");
    // What is seen counts more: ten go per tenth of a second, and after three seconds 700 have seven more to wait.
    for tenth in 1..=30 {
        let mut left = 10;
        queue.pump(
            at(f64::from(tenth) / 10.0),
            &mut endless(|_: &Arrival, _: &mut u32| {
                if left == 0 {
                    return Verdict::Stop;
                }
                left -= 1;
                Verdict::Placed
            }),
        );
    }
    assert_eq!(queue.len(), 700);
    let drained_in_s = queue.drained_in_s(2);
    assert!((3.5..14.0).contains(&drained_in_s), "{drained_in_s}");
}

impl Queue<u32> {
    fn pump_one(&mut self, now: Mono) {
        let mut done = false;
        self.pump(
            now,
            &mut endless(|_, _| {
                if std::mem::replace(&mut done, true) {
                    Verdict::Stop
                } else {
                    Verdict::Placed
                }
            }),
        );
    }
}

#[test]
fn a_flood_of_flows_is_bounded() {
    let mut queue = Queue::new(QueueSettings {
        max_requests: usize::MAX,
        ..QueueSettings::default()
    });
    for n in 0..10_000 {
        enter(
            &mut queue,
            Arrival {
                flow: FlowId(n),
                ..arrival(0.0)
            },
            0,
        );
    }
    assert!(queue.flows.len() <= MAX_FLOWS + 1);
    assert_eq!(queue.len(), 10_000);
}

/// Any mix of arrivals, departures, expiries and busy endpoints, against what must hold after each step.
#[test]
fn invariants_hold_under_random_traffic() {
    for seed in 0..40 {
        random_traffic(seed);
    }
}

fn random_traffic(seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let settings = QueueSettings {
        max_requests: 60,
        max_bytes: 3_000,
        ..QueueSettings::default()
    };
    let mut queue: Queue<u32> = Queue::new(settings);
    // The naive model: who waits, with ticket and the endpoint that it wants.
    let mut model: BTreeMap<u32, (Arrival, Ticket, u32)> = BTreeMap::new();
    for step in 0..1_500_u32 {
        let now = at(f64::from(step) * 0.5);
        match rng.random_range(0..10) {
            0..6 => {
                let arrival = Arrival {
                    flow: FlowId(rng.random_range(0..4)),
                    weight: 1.0,
                    deadline: now + Duration::from_secs(rng.random_range(20..400)),
                    miss_s: rng.random::<f64>() * 6.0,
                    work: rng.random_range(1..5000).into(),
                    bytes: rng.random_range(1..200),
                    ..arrival(f64::from(step) * 0.5)
                };
                match queue.enter(now, arrival, step) {
                    Entered::Waits { ticket, gave_way } => {
                        for name in gave_way {
                            assert!(model.remove(&name).is_some());
                        }
                        model.insert(step, (arrival, ticket, rng.random_range(0..3)));
                    }
                    Entered::Full(name) => assert_eq!(name, step),
                }
            }
            6 => {
                if let Some(name) = model.keys().nth(rng.random_range(0..60)).copied() {
                    let (_, ticket, _) = model.remove(&name).unwrap();
                    assert_eq!(queue.leave(now, ticket), Some(name));
                }
            }
            7 => {
                for name in queue.expire(now) {
                    assert!(model.remove(&name).unwrap().0.deadline <= now);
                }
                assert!(model.values().all(|(arrival, ..)| arrival.deadline > now));
            }
            _ => {
                let mut seats = [0_u32; 3].map(|_| rng.random_range(0..3));
                let mut gone = Vec::new();
                queue.pump(
                    now,
                    &mut endless(|_, name| {
                        let (_, _, wants) = model[name];
                        if seats[wants as usize] == 0 {
                            return Verdict::Busy(EndpointId(wants as u16));
                        }
                        seats[wants as usize] -= 1;
                        gone.push(*name);
                        Verdict::Placed
                    }),
                );
                for name in gone {
                    let (went, _, wants) = model.remove(&name).unwrap();
                    let overtaken = model.values().any(|(stays, _, wanted)| {
                        stays.flow == went.flow
                            && *wanted == wants
                            && stays.arrived + settings.overtake < went.arrived
                    });
                    assert!(
                        !overtaken,
                        "seed {seed}, step {step}: {name} went before its time"
                    );
                }
            }
        }
        assert_eq!(queue.len(), model.len());
        assert_eq!(
            queue.bytes(),
            model.values().map(|(arrival, ..)| arrival.bytes).sum::<u64>()
        );
        assert!(queue.len() <= settings.max_requests && queue.bytes() <= settings.max_bytes);
        assert_eq!(
            queue.oldest(),
            model.values().map(|(arrival, ..)| arrival.arrived).min()
        );
    }
}
