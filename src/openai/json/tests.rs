use super::{Cursor, Elements, Members, NotJson, Shape, has_control_character, shape};
use proptest::prelude::*;
use serde_json::Value;

fn accepts(text: &[u8]) -> bool {
    let mut cursor = Cursor::new(text);
    cursor.value().is_ok() && cursor.next_token().is_none()
}

#[test]
fn accepts_what_the_grammar_allows() {
    for text in [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "10",
        "-1.5",
        "1e9",
        "1E+9",
        "0.1e-2",
        "\"\"",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "[1,2]",
        "[[],{}]",
        "{\"a\":{\"b\":[null]}}",
        "  [ 1 , 2 ]  ",
        "\"\\\\\"",
        "\"\\\"\"",
        // Python's json takes these, so the engine does.
        "NaN",
        "Infinity",
        "-Infinity",
    ] {
        assert!(accepts(text.as_bytes()), "{text}");
    }
}

#[test]
fn refuses_what_the_grammar_forbids() {
    for text in [
        "",
        " ",
        "nul",
        "tru e",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "-",
        "--1",
        "-NaN",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "{a:1}",
        "{1:2}",
        "[}",
        "{]",
        "[1}",
        "{\"a\":1]",
        "\"",
        "\"\\\"",
        "\"a\nb\"",
        "\"\u{1f}\"",
        "[1]]",
        "1 2",
        "'a'",
        "\u{a0}1",
    ] {
        assert!(!accepts(text.as_bytes()), "{text}");
    }
}

#[test]
fn depth_costs_no_stack() {
    let depth = 1_000_000;
    let text = "[{\"a\":".repeat(depth) + "0" + &"}]".repeat(depth);
    assert!(accepts(text.as_bytes()));
    assert!(!accepts(&text.as_bytes()[..text.len() - 1]));
    let mut crossed = text.into_bytes();
    crossed[6 * depth + 2] = b'}';
    assert!(!accepts(&crossed));
}

#[test]
fn faults_say_where() {
    let fault = |text: &str| Cursor::new(text.as_bytes()).value().err();
    assert_eq!(fault("[1,x]"), Some(NotJson::Syntax(3)));
    assert_eq!(fault("[1,"), Some(NotJson::Truncated));
    assert_eq!(fault("[tru"), Some(NotJson::Truncated));
    assert_eq!(fault("[\"a\tb\"]"), Some(NotJson::ControlCharacter(1)));
}

#[test]
fn walks_elements_and_members() {
    let elements: Vec<&[u8]> = Elements::of(br#"[ 1 ,"a,]\"" ,[2,[3]], {"x":"}"},null]"#).collect();
    assert_eq!(
        elements,
        [&b"1"[..], br#""a,]\"""#, b"[2,[3]]", br#"{"x":"}"}"#, b"null"]
    );
    let members: Vec<_> = Members::of(br#"{"a" : 1, "b":{"c":[]} ,"":"x"}"#).collect();
    assert_eq!(
        members,
        [(&b"a"[..], &b"1"[..]), (b"b", br#"{"c":[]}"#), (b"", br#""x""#)]
    );
    assert_eq!(
        Elements::of(b"{\"a\":1}").count() + Members::of(b"[1]").count(),
        0
    );
    assert!(Elements::is_empty_array(b"[ \n]") && !Elements::is_empty_array(b"[0]"));
    assert_eq!(shape(b""), Shape::Absent);
}

proptest! {
    /// serde_json is the reference, on texts that are nearly JSON.
    #[test]
    fn agrees_with_serde_json(text in r#"([\[\]{},: \n]|"[a\\"]{0,2}"|"k":|-?[0-9]{1,2}|[.eE+]|null|true){0,12}"#) {
        let reference = serde_json::from_str::<Value>(&text);
        // Escapes are not checked, and numbers may be larger than serde_json's.
        let lenient = reference.as_ref().is_err_and(|error| {
            let error = error.to_string();
            error.contains("escape") || error.contains("out of range")
        });
        prop_assert!(lenient || accepts(text.as_bytes()) == reference.is_ok(), "{} {:?}", text, reference);
    }
}

#[test]
fn control_characters_are_found_in_strings_of_any_length() {
    for length in 1..70 {
        for at in 0..length {
            let mut text = vec![b'~'; length];
            assert!(!has_control_character(&text));
            text[at] = 0x1F;
            assert!(has_control_character(&text), "{at} of {length}");
            text[at] = 0x20;
            assert!(!has_control_character(&text));
        }
    }
    assert!(!has_control_character(b""));
}
