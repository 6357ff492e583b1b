//! Two tenants, of which one sends far more than its share.

use super::{FleetShape, Plan, Scenario, Settings, around, turn};
use crate::sim::replay::trace::exponential;
use crate::sim::replay::workload::{Session, Workload};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Prompts that nobody sends twice, from one tenant.
struct Stream {
    tenant: u64,
    rps: f64,
    prompt_tokens: f64,
    prompt_sigma: f64,
    output_tokens: f64,
}

/// Tenant 0 sends a little, tenant 1 a flood: one-shot prompts of both (open loop). What tenant 0 sends does not depend
/// on the flood's settings, so that a run with a flood next to nothing is tenant 0 by itself.
pub(super) fn flooded_tenant(settings: &mut Settings) -> Plan {
    let duration_s = settings.get("duration_s", 150.0);
    let block_size = settings.count("block_size", 512);
    let quiet = Stream {
        tenant: 0,
        rps: settings.get("quiet_rps", 3.0),
        prompt_tokens: settings.get("quiet_prompt_tokens", 4000.0),
        prompt_sigma: settings.get("quiet_prompt_sigma", 1.0),
        output_tokens: settings.get("quiet_output_tokens", 200.0),
    };
    let flood = Stream {
        tenant: 1,
        rps: settings.get("rps", 90.0),
        prompt_tokens: settings.get("prompt_tokens", 4000.0),
        prompt_sigma: settings.get("prompt_sigma", 1.0),
        output_tokens: settings.get("output_tokens", 200.0),
    };
    Box::new(move |rng| {
        let mut sessions = Vec::new();
        for stream in [quiet, flood] {
            let own = Pcg64Mcg::seed_from_u64(rng.random());
            sessions.extend(stream.sessions(duration_s, block_size, own));
        }
        Scenario {
            workload: Workload { block_size, sessions },
            fleet: FleetShape::default(),
        }
    })
}

impl Stream {
    fn sessions(&self, duration_s: f64, block_size: u32, mut rng: Pcg64Mcg) -> Vec<Session> {
        let (mut now_s, mut sessions) = (0.0, Vec::new());
        while now_s < duration_s {
            let prompt_tokens = around(&mut rng, self.prompt_tokens, self.prompt_sigma).min(100_000);
            let output_tokens = around(&mut rng, self.output_tokens, 0.8);
            let content = self.tenant << 40 | sessions.len() as u64;
            let mut session = Session::single(
                now_s,
                turn(&[(content, prompt_tokens)], output_tokens, block_size),
            );
            session.tenant = self.tenant;
            sessions.push(session);
            now_s += exponential(&mut rng, self.rps);
        }
        sessions
    }
}
