//! Which API a request path belongs to.

/// The API behind a request path. It only classifies: the path itself is forwarded byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathKind {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/tokenize` and `/v1/messages/count_tokens`: a prompt that the engine renders but does not run.
    Tokenize,
    /// `/v1/completions/render` and `/v1/chat/completions/render`.
    Render,
    /// `/score` and `/rerank`, with or without a version.
    Score,
    /// `/v1/models` and one model below it.
    Models,
    /// Every other path.
    Other,
}

impl PathKind {
    /// Classifies a path, with or without a query and with or without one final slash.
    /// Doubled slashes, doubled prefixes and percent-encoded spellings are [`PathKind::Other`].
    pub fn of(path: &str) -> Self {
        let path = path.split_once('?').map_or(path, |(path, _query)| path);
        match path.strip_suffix('/').unwrap_or(path) {
            "/v1/completions" => Self::Completions,
            "/v1/chat/completions" => Self::Chat,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/embeddings" => Self::Embeddings,
            "/tokenize" | "/v1/messages/count_tokens" => Self::Tokenize,
            "/v1/completions/render" | "/v1/chat/completions/render" => Self::Render,
            "/score" | "/v1/score" | "/rerank" | "/v1/rerank" | "/v2/rerank" => Self::Score,
            "/v1/models" => Self::Models,
            path if is_one_model(path) => Self::Models,
            _ => Self::Other,
        }
    }

    /// The word used as a metric label: one of a bounded set, whatever clients ask for.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completions => "completions",
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Tokenize => "tokenize",
            Self::Render => "render",
            Self::Score => "score",
            Self::Models => "models",
            Self::Other => "other",
        }
    }

    /// The word for it in OpenTelemetry's conventions for generative AI (`gen_ai.operation.name`), if there is one.
    pub const fn operation(self) -> Option<&'static str> {
        match self {
            Self::Completions => Some("text_completion"),
            Self::Chat | Self::Responses | Self::Messages => Some("chat"),
            Self::Embeddings => Some("embeddings"),
            _ => None,
        }
    }

    /// Whether [`Peek::feed`](super::Peek::feed) reads a prompt from such a request, so that it can be routed by it.
    pub const fn carries_prompt(self) -> bool {
        match self {
            Self::Completions
            | Self::Chat
            | Self::Responses
            | Self::Messages
            | Self::Embeddings
            | Self::Tokenize => true,
            Self::Render | Self::Score | Self::Models | Self::Other => false,
        }
    }

    /// Whether serving such a request leaves the prompt's KV blocks in the engine's cache.
    /// Tokenizing carries a prompt but computes nothing, so it must not be recorded as cached.
    pub const fn fills_kv_cache(self) -> bool {
        self.carries_prompt() && !matches!(self, Self::Tokenize)
    }
}

/// `/v1/models/ID`; ids of adapters and repositories may hold slashes themselves.
fn is_one_model(path: &str) -> bool {
    path.strip_prefix("/v1/models/").is_some_and(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::PathKind;

    #[test]
    fn known_paths_with_and_without_slash_and_query() {
        for (path, kind) in [
            ("/v1/completions", PathKind::Completions),
            ("/v1/chat/completions", PathKind::Chat),
            ("/v1/responses", PathKind::Responses),
            ("/v1/messages", PathKind::Messages),
            ("/v1/embeddings", PathKind::Embeddings),
            ("/tokenize", PathKind::Tokenize),
            ("/v1/messages/count_tokens", PathKind::Tokenize),
            ("/v1/completions/render", PathKind::Render),
            ("/rerank", PathKind::Score),
            ("/v1/models", PathKind::Models),
            ("/v1/models/org/name", PathKind::Models),
        ] {
            for suffix in ["", "/", "?x=1", "/?x=/v1/models"] {
                assert_eq!(PathKind::of(&format!("{path}{suffix}")), kind, "{path}{suffix}");
            }
        }
    }

    #[test]
    fn look_alikes_are_other() {
        for path in [
            "",
            "/",
            "/v1",
            "//v1/chat/completions",
            "/v1/v1/models",
            "/v1/chat/completions//",
            "/v1/chat%2Fcompletions",
            "/v1/Completions",
            "/v1/completionsx",
            "/v1/chat/completions/batch",
            "v1/completions",
        ] {
            assert_eq!(PathKind::of(path), PathKind::Other, "{path}");
        }
    }

    #[test]
    fn only_engine_work_fills_the_cache() {
        assert!(PathKind::Chat.fills_kv_cache());
        assert!(PathKind::Tokenize.carries_prompt() && !PathKind::Tokenize.fills_kv_cache());
        assert!(!PathKind::Score.carries_prompt());
    }
}
