use super::*;

fn parse(body: &str) -> EngineMetrics {
    EngineMetrics::parse(body.as_bytes()).unwrap()
}

#[test]
fn under_load_with_lora() {
    let m = parse(include_str!(
        "../../../tests/fixtures/vllm/metrics/underload_podA_lora_seqs2_queue4.txt"
    ));
    let lora = LoraRequests {
        max_adapters: Some(1),
        running: vec!["sql-lora".into()],
        waiting: vec!["sql-lora".into()],
    };
    assert_eq!(
        m,
        EngineMetrics {
            waiting: Some(2.0),
            running: Some(2.0),
            kv_usage: Some(0.025_157_232_704_402_51),
            block_size: Some(32),
            num_gpu_blocks: Some(160),
            capacity_tokens: Some(5120),
            prefix_caching: Some(true),
            prefix_cache_queries_tokens: Some(19767.0),
            prefix_cache_hits_tokens: Some(1312.0),
            prompt_tokens: Some(19767.0),
            generation_tokens: Some(295.0),
            preemptions: Some(0.0),
            process_start_time_s: Some(1_795_951_630.36),
            awake: Some(true),
            lora: Some(lora),
            malformed_lines: 0,
        }
    );
}

#[test]
fn data_parallel_engines_add_up() {
    let m = parse(include_str!("../../../tests/fixtures/vllm/metrics/podE_dp2.txt"));
    assert_eq!(m.prompt_tokens, Some(210.0 + 280.0));
    // Each of the two cores has 16 MiB of KV at 1 KiB a token: 16384 tokens, 512 blocks.
    assert_eq!(m.num_gpu_blocks, Some(2 * 512));
    assert_eq!(m.capacity_tokens, Some(2 * 16384));
    assert_eq!(m.block_size, Some(32));
    assert_eq!(m.awake, Some(true));
}

#[test]
fn waiting_requests_and_preemptions() {
    let m = parse(include_str!(
        "../../../tests/fixtures/vllm/metrics/underload_small_waiting.txt"
    ));
    assert_eq!(
        (m.waiting, m.running, m.preemptions),
        (Some(18.0), Some(12.0), Some(0.0))
    );
    assert_eq!(m.kv_usage, Some(0.560_784_313_725_490_2));
    assert_eq!(m.gauges().kv_usage, m.kv_usage);
}

/// Old name, new name, both, and one series per process with most values zero: one answer.
#[test]
fn kv_usage_under_all_its_names() {
    let by_pid: String = (0..8)
        .map(|pid| {
            format!(
                "vllm:kv_cache_usage_perc{{pid=\"{pid}\"}} {}\n",
                if pid == 5 { 0.65 } else { 0.0 }
            )
        })
        .collect();
    for body in [
        "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.65\n",
        "vllm:kv_cache_usage_perc 0.65\n",
        "vllm:gpu_cache_usage_perc 0.65\nvllm:kv_cache_usage_perc 0.65\n",
        &by_pid,
    ] {
        assert_eq!(parse(body).kv_usage, Some(0.65), "{body}");
    }
}

#[test]
fn unknown_is_not_zero() {
    assert_eq!(parse("vllm:other 1\n"), EngineMetrics::default());
    let odd =
        parse("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting -1\nvllm:num_requests_running +Inf\n");
    assert_eq!(odd, EngineMetrics::default());
}

#[test]
fn an_unprofiled_cache_has_no_size() {
    let m = parse(
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\",enable_prefix_caching=\"False\"} 1\n",
    );
    assert_eq!(
        (m.block_size, m.num_gpu_blocks, m.capacity_tokens),
        (Some(16), None, None)
    );
    assert_eq!(m.prefix_caching, Some(false));
    let m = parse(
        "vllm:cache_config_info{block_size=\"None\",kv_cache_size_tokens=\"4096\",num_gpu_blocks=\"None\"} 1\n",
    );
    assert_eq!((m.block_size, m.capacity_tokens), (None, Some(4096)));
    let two = "vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"96\"} 1\nvllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"32\"} 1\n";
    assert_eq!(parse(two).capacity_tokens, Some(128));
}

#[test]
fn one_engine_behind_many_processes_is_counted_once() {
    let line = |pid, blocks| {
        format!(
            "vllm:cache_config_info{{engine=\"0\",pid=\"{pid}\",block_size=\"16\",num_gpu_blocks=\"{blocks}\"}} 1\n"
        )
    };
    let body = line(1, "None") + &line(2, "100") + &line(3, "100");
    assert_eq!(parse(&body).capacity_tokens, Some(1600));
}

#[test]
fn counters_of_old_versions() {
    let m = parse(
        "vllm:gpu_prefix_cache_queries_total 10\nvllm:gpu_prefix_cache_hits_total 4\nvllm:prefix_cache_hits_total 4\nvllm:prompt_tokens 7\n",
    );
    assert_eq!(
        (
            m.prefix_cache_queries_tokens,
            m.prefix_cache_hits_tokens,
            m.prompt_tokens
        ),
        (Some(10.0), Some(4.0), Some(7.0))
    );
}

#[test]
fn one_sleeping_engine_is_a_sleeping_server() {
    let m = parse(
        "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 1\nvllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 0\nvllm:engine_sleep_state{engine=\"1\",sleep_state=\"discard_all\"} 1\n",
    );
    assert_eq!(m.awake, Some(false));
}

#[test]
fn the_newest_lora_series_wins() {
    let m = parse(
        "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a, b\",waiting_lora_adapters=\"\"} 20\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"old\",waiting_lora_adapters=\"\"} 10\n",
    );
    let lora = m.lora.unwrap();
    assert_eq!(
        (lora.max_adapters, lora.running, lora.waiting),
        (Some(4), vec!["a".to_owned(), "b".to_owned()], vec![])
    );
}

#[test]
fn an_adapter_runs_or_fits_or_waits_or_does_none_of_it() {
    use crate::scheduling::AdapterStanding::{FreeSlot, NoSlot, Running, Waiting};
    let lora = |slots: &str, running: &str, waiting: &str| {
        let line = format!(
            "vllm:lora_requests_info{{max_lora=\"{slots}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} 1\n"
        );
        parse(&line).lora.unwrap()
    };
    for (slots, running, waiting, standing) in [
        ("2", "a,b", "c", Running),
        ("2", "b", "", FreeSlot),
        ("2", "b", "b", FreeSlot),
        ("2", "b,c", "a", Waiting),
        ("2", "b,c", "", NoSlot),
        ("2", "b", "c", NoSlot),
        ("?", "", "", NoSlot),
    ] {
        assert_eq!(
            lora(slots, running, waiting).standing("a"),
            standing,
            "{slots} {running} {waiting}"
        );
    }
}

#[test]
fn a_web_page_is_an_error() {
    assert!(EngineMetrics::parse(b"<html><body>vllm:num_requests_waiting 0</body></html>").is_err());
}
