//! Names of all metric families, in one place: dashboards and alerts hold on to them.

pub const REQUESTS: &str = "homing_requests_total";
pub const REQUEST_DURATION: &str = "homing_request_duration_seconds";
pub const TIME_TO_FIRST_BYTE: &str = "homing_time_to_first_byte_seconds";
pub const DECISION_DURATION: &str = "homing_decision_duration_seconds";
pub const DECISIONS: &str = "homing_decisions_total";
pub const PROMPT_BLOCKS: &str = "homing_prompt_blocks_total";
pub const PREFIX_MATCHED_BLOCKS: &str = "homing_prefix_matched_blocks_total";
pub const ENDPOINT_INFLIGHT: &str = "homing_endpoint_inflight_requests";
pub const ENDPOINT_PENDING_PREFILL: &str = "homing_endpoint_pending_prefill_tokens";
pub const ENDPOINT_STATE: &str = "homing_endpoint_state";
pub const PREFIX_INDEX_BLOCKS: &str = "homing_prefix_index_blocks";
pub const PREFIX_INDEX_BYTES: &str = "homing_prefix_index_bytes";
pub const ERRORS: &str = "homing_errors_total";
pub const RETRIES: &str = "homing_retries_total";
pub const SCRAPES: &str = "homing_scrapes_total";
pub const CONFIG_RELOADS: &str = "homing_config_reloads_total";
pub const CONFIG_LAST_RELOAD_SUCCESSFUL: &str = "homing_config_last_reload_successful";
pub const BUILD_INFO: &str = "homing_build_info";
