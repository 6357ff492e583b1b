//! The dashboard: hand-written files, embedded as they are. Nothing is fetched from anywhere else.

use http::{HeaderName, HeaderValue, header};
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;

/// The page and its parts by path.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/ui/style.css", CSS, include_str!("page/style.css")),
    ("/ui/icon.svg", SVG, include_str!("page/icon.svg")),
    ("/ui/main.js", JS, include_str!("page/main.js")),
    ("/ui/model.js", JS, include_str!("page/model.js")),
    ("/ui/format.js", JS, include_str!("page/format.js")),
    ("/ui/charts.js", JS, include_str!("page/charts.js")),
    ("/ui/overview.js", JS, include_str!("page/overview.js")),
    ("/ui/fleet.js", JS, include_str!("page/fleet.js")),
    ("/ui/decisions.js", JS, include_str!("page/decisions.js")),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Nothing from elsewhere, nothing inline, no frame around the page: a click on `Drain` is the operator's own.
const HEADERS: &[(HeaderName, &str)] = &[
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    // An upgraded gateway brings its own page; the files are small.
    (header::CACHE_CONTROL, "no-cache"),
];

/// The file at `path`, if it is one of the dashboard's.
pub fn file(path: &str) -> Option<Response<Full<Bytes>>> {
    let (_, content_type, text) = FILES.iter().find(|(of, ..)| *of == path)?;
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_a_file_names_is_served() {
        let named = |text: &str| -> Vec<String> {
            let of = text.split(['"', '\'']).skip(1).step_by(2);
            of.filter_map(|quoted| {
                let name = quoted.strip_prefix("./").map(|name| format!("/ui/{name}"));
                name.or_else(|| quoted.starts_with("/ui/").then(|| quoted.to_owned()))
            })
            .collect()
        };
        for (path, _, text) in FILES {
            let script_lines = text
                .lines()
                .filter(|l| l.contains("import") || l.contains("/ui/"));
            for name in script_lines.flat_map(named) {
                assert!(file(&name).is_some(), "{path} names {name}");
            }
        }
    }

    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for (path, content_type, text) in FILES {
            // The XML namespace of SVG is a name, not an address.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            let address = ["https://", "http://", "src=\"//"]
                .iter()
                .find(|a| text.contains(**a));
            assert_eq!(address, None, "{path}");
            if *content_type == HTML {
                assert!(!text.contains("<style") && !text.contains(" style="), "{path}");
                assert!(
                    !text.contains("<script>") && !text.contains(" onclick="),
                    "{path}"
                );
            }
        }
    }
}
