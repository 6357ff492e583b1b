use super::*;
use proptest::prelude::*;

/// Name, labels and value.
type Row = (String, Vec<(String, String)>, f64);

fn all(body: &str) -> (Vec<Row>, u64) {
    let mut samples = Samples::new(body.as_bytes()).unwrap();
    let read = samples
        .by_ref()
        .map(|s| {
            let labels = s
                .labels()
                .map(|l| (l.name.to_owned(), l.value().into_owned()))
                .collect();
            (s.name.to_owned(), labels, s.value)
        })
        .collect();
    (read, samples.malformed())
}

fn one(line: &str) -> Option<Sample<'_>> {
    Samples::new(line.as_bytes()).ok()?.next()
}

#[test]
fn labels_may_hold_any_delimiter_of_the_format() {
    let line = r#"m{a="x,y",b = "q\"}\"",c="\\n\n=",d="{}# 1", e="", } 3 1700000000000"#;
    let (read, malformed) = all(line);
    let want = [
        ("a", "x,y"),
        ("b", "q\"}\""),
        ("c", "\\n\n="),
        ("d", "{}# 1"),
        ("e", ""),
    ];
    let got: Vec<_> = read[0].1.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(got, want);
    assert_eq!((read[0].2, malformed), (3.0, 0));
    assert_eq!(one(line).unwrap().timestamp, Some(1_700_000_000_000.0));
}

#[test]
fn values_of_all_spellings() {
    for (text, want) in [
        ("1", 1.0),
        ("-0.5", -0.5),
        ("1.795e+09", 1.795e9),
        ("+Inf", f64::INFINITY),
    ] {
        assert_eq!(one(&format!("m {text}")).unwrap().value, want);
    }
    assert_eq!(one("m -Inf").unwrap().value, f64::NEG_INFINITY);
    assert!(one("m\tNaN").unwrap().value.is_nan());
    assert_eq!(one("m{} 4").unwrap().value, 4.0);
}

#[test]
fn line_ends_comments_and_a_missing_last_newline() {
    let (read, malformed) = all("# HELP a x\r\n# TYPE a gauge\r\n\r\n#c\r\na 1\r\n  b{x=\"y\"} 2\r\nc 3");
    assert_eq!(
        read.iter().map(|r| (r.0.as_str(), r.2)).collect::<Vec<_>>(),
        [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    );
    assert_eq!(malformed, 0);
}

#[test]
fn openmetrics_exemplars_and_end_are_tolerated() {
    let (read, malformed) =
        all("a_bucket{le=\"1\"} 5 # {trace_id=\"x y\"} 0.67\nb 2 1.5 # {} 1\n# EOF\nafter 1\n");
    assert_eq!(read.len(), 2);
    assert_eq!((read[0].2, read[1].2, malformed), (5.0, 2.0, 0));
}

#[test]
fn malformed_lines_are_counted_and_skipped() {
    let bad = [
        "m",
        "m{",
        "m{a} 1",
        "m{a=\"b} 1",
        "m{a=b} 1",
        "m{a=\"b\"c=\"d\"} 1",
        "m x",
        "m 1 2 3",
        "1m 2",
        "m-n 1",
    ];
    for line in bad {
        let (read, malformed) = all(&format!("ok 1\n{line}\nok 2\n"));
        assert_eq!((read.len(), malformed), (2, 1), "{line}");
    }
}

#[test]
fn a_web_page_is_an_error_and_an_empty_page_is_not() {
    for body in [
        "<!DOCTYPE html>\n<p>m 1</p>\n",
        "\n <html>",
        "{\"detail\":\"Not Found\"}",
        "Not Found",
        "Sign in, please\n",
    ] {
        assert_eq!(Samples::new(body.as_bytes()).err(), Some(NotExposition), "{body}");
    }
    assert_eq!(all("\n\n").0.len(), 0);
    assert_eq!(all("# HELP only comments\n").0.len(), 0);
}

#[test]
fn unwanted_names_are_passed_over() {
    let body = b"skip{broken 1\nkeep 2\nskip_too 3\n<garbage\n";
    let mut samples = Samples::only(body, |name| name == b"keep").unwrap();
    assert_eq!(samples.by_ref().map(|s| s.value).collect::<Vec<_>>(), [2.0]);
    assert_eq!(samples.malformed(), 1);
}

#[test]
fn invalid_utf8_spoils_only_its_own_value() {
    let body = b"a{x=\"\xff\"} 1\nb 2\n";
    let read: Vec<_> = Samples::new(body).unwrap().collect();
    assert_eq!(read[0].label("x").unwrap().value(), "\u{fffd}");
    assert_eq!(read[1].value, 2.0);
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

proptest! {
    #[test]
    fn written_samples_are_read_back(
        rows in prop::collection::vec(
            ("[a-z_:][a-z0-9_:]{0,9}", prop::collection::vec(("[a-z_]{1,5}", any::<String>()), 0..4), any::<f64>()),
            1..20,
        ),
    ) {
        // CR is legal inside a value, and only there: the format ends lines with LF.
        let mut body = String::new();
        for (name, labels, value) in &rows {
            let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
            body += &format!("{name}{{{}}} {value:?}\n", labels.join(","));
        }
        let (read, malformed) = all(&body);
        prop_assert_eq!(malformed, 0);
        prop_assert_eq!(read.len(), rows.len());
        for (got, (name, labels, value)) in read.iter().zip(&rows) {
            prop_assert_eq!(&got.0, name);
            prop_assert_eq!(&got.1, labels);
            prop_assert!(got.2 == *value || (got.2.is_nan() && value.is_nan()));
        }
    }

    #[test]
    fn no_input_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(samples) = Samples::new(&body) {
            for sample in samples {
                let _ = sample.labels().map(|l| l.value().len()).sum::<usize>();
            }
        }
    }
}
