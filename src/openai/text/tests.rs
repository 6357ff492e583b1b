use super::{LONG_STRING, minify, normalise, to_bytes};

fn normal(inside: &str) -> Vec<u8> {
    let mut out = vec![];
    normalise(inside.as_bytes(), &mut |piece| out.extend_from_slice(piece));
    out
}

fn minified(value: &str) -> String {
    let mut out = vec![];
    minify(value.as_bytes(), &mut |piece| out.extend_from_slice(piece));
    String::from_utf8(out).unwrap()
}

#[test]
fn escapes_decode_as_the_rfc_says() {
    assert_eq!(&*to_bytes(br#"a\"\\\/\b\f\n\r\tz"#), b"a\"\\/\x08\x0c\n\r\tz");
    assert_eq!(
        &*to_bytes(br"\u0041\u00e9\u20AC\ud83d\uDE00\u0000"),
        "Aé€😀\0".as_bytes()
    );
    assert_eq!(&*to_bytes(br"\ud800x"), b"\xED\xA0\x80x");
    assert_eq!(&*to_bytes(br"\x\u12"), br"\x\u12");
}

#[test]
fn needed_escapes_stay_and_others_go() {
    assert_eq!(normal(r#"a\"\\\b\f\n\r\tz"#), br#"a\"\\\b\f\n\r\tz"#);
    assert_eq!(
        normal(r"\/\u0041\u00e9\u20AC\ud83d\uDE00\u007f"),
        "/Aé€😀\u{7f}".as_bytes()
    );
    assert_eq!(
        normal(r"\u0022\u005C\u0008\u000c\u000A\u000d\u0009\u001F\u0000"),
        br#"\"\\\b\f\n\r\t\u001f\u0000"#
    );
    assert_eq!(normal(r"\\u0041\\/"), br"\\u0041\\/");
}

#[test]
fn lone_surrogates_become_generalised_utf8() {
    assert_eq!(normal(r"\ud800"), b"\xED\xA0\x80");
    assert_eq!(normal(r"\udc00x"), b"\xED\xB0\x80x");
    assert_eq!(normal(r"\ud800\u0041"), b"\xED\xA0\x80A");
    assert_eq!(normal(r"\ud800\ud83d\ude00"), b"\xED\xA0\x80\xF0\x9F\x98\x80");
}

#[test]
fn wrong_escapes_stay_as_they_are() {
    assert_eq!(normal(r"\x\u12"), br"\x\u12");
    assert_eq!(normal(r"\u12g4\"), br"\u12g4\");
}

/// serde_json writes the same canonical spelling.
#[test]
fn runs_of_every_length_keep_their_bytes() {
    for run in 0..1100 {
        let plain: String = ('a'..='z').cycle().take(run).collect();
        let spelled = [
            r"\n",
            &plain,
            r"\u20AC",
            &plain,
            r"\/\\u",
            &plain,
            r"\u000a\ud83d\ude00",
        ]
        .concat();
        let text = ["\n", &plain, "€", &plain, "/\\u", &plain, "\n😀"].concat();
        assert_eq!(&*to_bytes(spelled.as_bytes()), text.as_bytes(), "{run}");
        let canonical = serde_json::to_string(&text).unwrap();
        assert_eq!(normal(&spelled), canonical.trim_matches('"').as_bytes(), "{run}");
        assert_eq!(
            normal(canonical.trim_matches('"')),
            canonical.trim_matches('"').as_bytes(),
            "{run}"
        );
    }
}

#[test]
fn a_lone_odd_escape_is_found_wherever_it_stands() {
    for at in 0..LONG_STRING + 40 {
        for (odd, plain) in [(r"\u0041", "A"), (r"\/", "/")] {
            let before = r"\n".to_owned() + &"x".repeat(at);
            let after = "y".repeat(LONG_STRING - at.min(LONG_STRING)) + r"\t";
            let canonical = [&before, plain, &after].concat();
            assert_eq!(
                normal(&[&before, odd, &after].concat()),
                canonical.as_bytes(),
                "{odd} at {at}"
            );
            assert_eq!(normal(&canonical), canonical.as_bytes());
        }
    }
}

#[test]
fn minify_drops_spelling_and_keeps_meaning() {
    assert_eq!(
        minified(" { \"a\" : [ 1.0 , -2e3, true ] ,\n\"b c\":\"x  \\u0041\\u000A\\\"\\\\\" } "),
        r#"{"a":[1.0,-2e3,true],"b c":"x  A\n\"\\"}"#
    );
}
