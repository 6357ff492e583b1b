//! `homing-bench-core CASE TIMES`: does one thing many times over, for a profiler that counts instructions.
//!
//! Setting up is the same whatever TIMES is, so the difference between two runs is the thing itself. Without
//! arguments: the names of the cases.

mod cases;
mod prompts;

#[path = "../../src"]
mod homing {
    pub mod datalayer {
        pub mod exposition;
    }
    pub mod openai;
    pub mod prefix;
    pub mod scheduling;
    pub mod time;
}
use homing::{datalayer, openai, prefix, scheduling, time};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, times] = &arguments[..] else {
        cases::ALL.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let times = times.parse().expect("TIMES is a number");
    let (_, case) = cases::ALL
        .iter()
        .find(|(known, _)| known == name)
        .expect("CASE is one of those listed without arguments");
    case(times);
}
