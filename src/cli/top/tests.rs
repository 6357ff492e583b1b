use super::rates::Window;
use super::view::{Scene, View, as_text};
use super::*;
use crate::admin::stats::{EndpointStats, PoolStats};
use crate::telemetry::BucketCounts;

fn endpoint(name: &str, requests: u64, prompt_blocks: u64, matched_blocks: u64) -> EndpointStats {
    EndpointStats {
        name: name.to_owned(),
        state: "ready".to_owned(),
        block_tokens: 16,
        requests,
        prompt_blocks,
        matched_blocks,
        first_byte_count: requests,
        first_byte_sum_s: requests as f64 * 0.05,
        kv_usage: Some(0.5),
        ..EndpointStats::default()
    }
}

fn look(uptime_ms: u64, endpoints: Vec<EndpointStats>) -> Stats {
    let requests = endpoints.iter().map(|e| e.requests).sum();
    let pool = PoolStats {
        name: "default".to_owned(),
        policy: "least-cost".to_owned(),
        endpoints,
        first_byte: BucketCounts {
            bounds_s: vec![0.1, 1.0],
            counts: vec![requests, 0, 0],
        },
        ..PoolStats::default()
    };
    Stats {
        version: "1.2.3".to_owned(),
        uptime_ms,
        pools: vec![pool],
        ..Stats::default()
    }
}

/// pod-a: 10 requests, 30 of 40 blocks matched in 10 s; pod-b: 30 requests, none of 120.
fn two_pods() -> Window {
    let mut window = Window::default();
    window.push(look(
        1_000,
        vec![endpoint("pod-a", 0, 0, 0), endpoint("pod-b", 0, 0, 0)],
    ));
    window.push(look(
        11_000,
        vec![endpoint("pod-a", 10, 40, 30), endpoint("pod-b", 30, 120, 0)],
    ));
    window
}

fn screen(view: &mut View, scene: &Scene) -> String {
    let mut terminal = Terminal::new(TestBackend::new(120, 18)).unwrap();
    terminal.draw(|frame| view.draw(frame, scene)).unwrap();
    as_text(terminal.backend().buffer())
}

fn words(screen: &str, of: &str) -> Vec<String> {
    let line = screen.lines().find(|line| line.starts_with(of)).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

const NO_DECISIONS: &[Decision] = &[];

fn scene<'a>(window: &'a Window, decisions: &'a [Decision]) -> Scene<'a> {
    Scene {
        window,
        decisions,
        fault: None,
    }
}

#[test]
fn rates_are_differences_over_the_window() {
    let rates = two_pods().rates(0);
    assert_eq!(rates[0].requests_per_s, 1.0);
    assert_eq!(rates[0].prompt_tokens_per_s, 64.0);
    assert_eq!(rates[0].predicted_hits, Some(0.75));
    assert_eq!(rates[0].engine_hits, None);
    assert!((rates[1].first_byte_s.unwrap() - 0.05).abs() < 1e-12);
}

#[test]
fn shows_each_endpoint_with_its_share() {
    let window = two_pods();
    let screen = screen(&mut View::default(), &scene(&window, NO_DECISIONS));
    assert!(
        screen.starts_with("Homing 1.2.3  ready  pool default  least-cost  up 0:00:11"),
        "{screen}"
    );
    assert!(screen.contains("endpoints ready 2/2   requests/s 4 "), "{screen}");
    assert!(
        screen.contains("hit rate 19%   TTFT p50 50ms   p99 99ms"),
        "{screen}"
    );
    let a = words(&screen, "pod-a");
    assert_eq!(
        a,
        [
            "pod-a",
            "ready",
            "0",
            "0",
            "-",
            "████····",
            "50%",
            "██······",
            "25%",
            "75%",
            "-",
            "50ms",
            "1",
            "0"
        ]
    );
}

#[test]
fn sorts_by_tokens_and_says_so() {
    let window = two_pods();
    let mut view = View::default();
    view.key(KeyCode::Char('s'));
    view.key(KeyCode::Char('s'));
    let screen = screen(&mut view, &scene(&window, NO_DECISIONS));
    let (a, b) = (screen.find("pod-a").unwrap(), screen.find("pod-b").unwrap());
    assert!(b < a && screen.contains("sort: prompt tokens"), "{screen}");
}

#[test]
fn tells_decisions_and_failures() {
    let decision = |kind: &str, status| Decision {
        pool: "default".to_owned(),
        kind: kind.to_owned(),
        model: "m".to_owned(),
        endpoint: Some("pod-a".to_owned()),
        status,
        why: "pod-a holds 96 tokens of the prompt".to_owned(),
        ttfb_ms: Some(12.0),
    };
    let decisions = [decision("warm", 200), decision("cold", 502)];
    let window = two_pods();
    let screen = screen(&mut View::default(), &scene(&window, &decisions));
    assert!(
        screen.contains("warm    pod-a               12ms  m  pod-a holds 96 tokens"),
        "{screen}"
    );
    assert!(screen.contains("cold    pod-a 502"), "{screen}");
}

#[test]
fn a_gateway_that_is_gone_is_told_beside_the_last_picture() {
    let window = two_pods();
    let mut lost = scene(&window, NO_DECISIONS);
    lost.fault = Some("no answer from http://127.0.0.1:9901");
    let picture = screen(&mut View::default(), &lost);
    assert!(picture.contains("no answer from http://127.0.0.1:9901") && picture.contains("pod-a"));
    let never = Window::default();
    assert_eq!(
        screen(&mut View::default(), &scene(&never, NO_DECISIONS)),
        "waiting for the gateway\n"
    );
}

#[test]
fn a_restart_of_the_gateway_starts_the_window_anew() {
    let mut window = two_pods();
    window.push(look(500, vec![endpoint("pod-a", 1, 4, 0)]));
    assert_eq!(window.rates(0)[0].requests_per_s, 0.0);
}
