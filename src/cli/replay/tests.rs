use super::*;
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn parse(line: &str) -> Result<Args, clap::Error> {
    Cli::try_parse_from(std::iter::once("replay").chain(line.split_whitespace())).map(|cli| cli.args)
}

#[test]
fn a_source_is_needed_and_only_one() {
    assert!(parse("").is_err());
    assert!(parse("--trace a --generate lock-in").is_err());
    assert!(parse("--generate lock-in --policy random").is_ok());
}

#[test]
fn a_scenario_brings_its_fleet_and_options_override_it() {
    let fleet_of = |line: &str| scenarios(&parse(line).unwrap()).unwrap().remove(0).1;
    let spec = fleet_of("--generate lock-in");
    assert_eq!((spec.endpoints, spec.engine.max_num_seqs), (2, 32));
    assert_eq!(
        spec.changes,
        [Change {
            at_s: 300.0,
            endpoint: 1,
            kind: ChangeKind::Join
        }]
    );
    let spec = fleet_of("--generate lock-in --endpoints 3 --join 2@1m --restart 0@10s --kv-tokens 32000");
    assert_eq!((spec.endpoints, spec.engine.num_blocks), (3, 2000));
    let join = Change {
        at_s: 60.0,
        endpoint: 2,
        kind: ChangeKind::Join,
    };
    assert_eq!(
        spec.changes,
        [
            join,
            Change {
                at_s: 10.0,
                endpoint: 0,
                kind: ChangeKind::Restart
            }
        ]
    );
}

#[test]
fn faults_are_named() {
    for line in [
        "--set x",
        "--set rps=0",
        "--rate -1",
        "--join 1",
        "--join a@3s",
        "--join 1@3",
        "--speeds 0",
    ] {
        assert!(parse(&format!("--generate lock-in {line}")).is_err(), "{line}");
    }
    let fault = |line: &str| run(&parse(line).unwrap()).unwrap_err().to_string();
    assert!(
        fault("--generate cold-burst --policy fastest")
            .starts_with("no policy `fastest`; there are least-cost")
    );
    assert!(fault("--trace /nonexistent.jsonl").contains("/nonexistent.jsonl"));
    assert!(fault("--generate cold").contains("no generator `cold`"));
}

#[test]
fn replays_and_draws() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("burst.svg");
    let line = format!(
        "--generate cold-burst --policy least-cost,random --format json --plot {}",
        picture.display()
    );
    run(&parse(&line).unwrap()).unwrap();
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.contains("<svg") && drawn.contains("least-cost"));
}
