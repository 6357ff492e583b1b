use super::*;
use serde_json::Value as Json;

const NOW: jiff::civil::DateTime = jiff::civil::date(2026, 7, 4).at(9, 5, 7, 0);

/// Templates and expressions with what Jinja2 3.1.6, set up as `transformers` sets it up, makes of them.
fn goldens() -> Json {
    serde_json::from_str(include_str!("../../../tests/fixtures/chat/jinja2.json")).unwrap()
}

fn render(source: &str, variables: &Json) -> Result<String, minijinja::Error> {
    let source = environment::without_generation_tags(source);
    let mut environment = environment::new();
    environment.add_global("strftime_now", environment::strftime_now(NOW));
    environment.add_template("t", &source)?;
    environment
        .get_template("t")?
        .render(Value::from(Serde(variables)))
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    for case in goldens()["templates"].as_array().unwrap() {
        let (name, source) = (&case["name"], case["template"].as_str().unwrap());
        let rendered = render(source, &case["variables"]);
        match case["rendered"].as_str() {
            Some(expected) => assert_eq!(rendered.unwrap(), expected, "{name}"),
            None => assert!(rendered.is_err(), "{name}: {rendered:?}"),
        }
    }
}

#[test]
fn expressions_print_as_in_python() {
    let goldens = goldens();
    for case in goldens["expressions"].as_array().unwrap() {
        let (expression, expected) = (case[0].as_str().unwrap(), case[1].as_str().unwrap());
        let rendered = render(expression, &goldens["variables"]);
        assert_eq!(
            rendered.map_err(|error| format!("{error:#}")).as_deref(),
            Ok(expected),
            "{expression}"
        );
    }
}

#[test]
fn an_exception_carries_the_templates_message() {
    let error = render("{{ raise_exception('roles must alternate') }}", &Json::Null).unwrap_err();
    assert!(error.to_string().contains("roles must alternate"), "{error}");
}

#[test]
fn a_template_that_runs_on_is_stopped() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}";
    assert!(render(endless, &Json::Null).is_err());
}

#[test]
fn content_formats() {
    let string = [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}",
        "{% for m in other %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
        "{% broken",
    ];
    let openai = [
        "{% for m in messages %}{% for c in m['content'] %}{{ c.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% if m.content is string %}a{% else %}{% for c in m.content %}x{% endfor %}{% endif %}{% endfor %}",
        "{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{% for c in m.content | selectattr('type', 'equalto', 'text') %}x{% endfor %}{% endfor %}",
        "{% macro parts(content) %}{% for item in content %}{{ item.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ parts(m.content) }}{% endfor %}",
    ];
    for source in string {
        assert_eq!(ContentFormat::of(source), ContentFormat::String, "{source}");
    }
    for source in openai {
        assert_eq!(ContentFormat::of(source), ContentFormat::OpenAi, "{source}");
    }
}

fn templates(sources: &[(&str, &str)]) -> ChatTemplates {
    let sources = sources
        .iter()
        .map(|(name, source)| ((*name).to_owned(), (*source).to_owned()))
        .collect();
    let special = BTreeMap::from([("bos_token".to_owned(), Json::from("<s>"))]);
    ChatTemplates::new(sources, special).unwrap()
}

fn request(body: Json) -> ChatRequest {
    ChatRequest::from_body(body.to_string().as_bytes()).unwrap()
}

fn chat(templates: &ChatTemplates, body: Json) -> Result<String, RenderError> {
    let request = request(body);
    let template = templates.for_request(&request).unwrap();
    let conversation =
        crate::tokens::chat::conversation(&request.messages, template.content_format()).unwrap();
    template.render(&request, &conversation, NOW)
}

#[test]
fn what_a_template_sees() {
    let templates = templates(&[
        (
            "default",
            "{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ add_generation_prompt }}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ messages | length }}",
        ),
        ("tool_use", "{{ tools | tojson }}"),
    ]);
    let messages = serde_json::json!([{"role": "user", "content": "x"}]);
    let plain = chat(
        &templates,
        serde_json::json!({"messages": messages, "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": false, "add_generation_prompt": false, "reasoning_effort": "high"}}),
    );
    assert_eq!(plain.unwrap(), "<s>||None|True|False|low|1");
    let with_tools = chat(
        &templates,
        serde_json::json!({"messages": messages, "tools": [
        {"function": {"parameters": {}, "name": "f", "strict": true}, "type": "function", "x": 1}]}),
    );
    assert_eq!(
        with_tools.unwrap(),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {}, "strict": true}, "x": 1}]"#
    );
}

#[test]
fn the_final_message_can_be_continued() {
    let trimming = templates(&[(
        "default",
        "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}END",
    )]);
    let keeping = templates(&[(
        "default",
        "{% for m in messages %}[{{ m.content }}]{% endfor %}END",
    )]);
    let body = serde_json::json!({"continue_final_message": true, "add_generation_prompt": false,
        "messages": [{"role": "user", "content": "so"}, {"role": "assistant", "content": " so "}]});
    assert_eq!(chat(&trimming, body.clone()).unwrap(), "[so][so");
    assert_eq!(chat(&keeping, body.clone()).unwrap(), "[so][ so ");
    let dropping = templates(&[("default", "END")]);
    assert!(matches!(
        chat(&dropping, body),
        Err(RenderError::NothingToContinue)
    ));
}
