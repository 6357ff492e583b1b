//! Tools and tool calls with their keys in the order of vLLM's request classes.

use serde_json::{Map, Value, json};

/// A tool of the request: `type`, then `function` with name, description and parameters (null when absent),
/// then whatever else there is, as the request class dumps itself.
pub(super) fn normalized(tool: Value) -> Value {
    let Value::Object(mut tool) = tool else {
        return tool;
    };
    let mut out = Map::new();
    out.insert(
        "type".to_owned(),
        tool.shift_remove("type").unwrap_or_else(|| json!("function")),
    );
    if let Some(function) = tool.shift_remove("function") {
        out.insert("function".to_owned(), function_definition(function));
    }
    out.extend(tool);
    Value::Object(out)
}

fn function_definition(function: Value) -> Value {
    let Value::Object(mut function) = function else {
        return function;
    };
    let mut out = Map::new();
    for field in ["name", "description", "parameters"] {
        out.insert(
            field.to_owned(),
            function.shift_remove(field).unwrap_or(Value::Null),
        );
    }
    out.extend(function);
    Value::Object(out)
}

/// A tool call of an assistant's turn: `id`, `function` with arguments and name, `type`; other keys are dropped.
/// Arguments are the object that their text encodes, or an empty one.
pub(super) fn call(call: &Value) -> Value {
    let Value::Object(call) = call else {
        return call.clone();
    };
    let mut out = Map::new();
    for field in ["id", "function", "type"] {
        match (field, call.get(field)) {
            ("function", Some(Value::Object(function))) => {
                out.insert(field.to_owned(), called_function(function));
            }
            (_, Some(value)) => {
                out.insert(field.to_owned(), value.clone());
            }
            (_, None) => {}
        }
    }
    Value::Object(out)
}

fn called_function(function: &Map<String, Value>) -> Value {
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| json!({})),
        Some(given @ (Value::Object(_) | Value::Array(_))) => given.clone(),
        _ => json!({}),
    };
    let mut out = Map::new();
    out.insert("arguments".to_owned(), arguments);
    if let Some(name) = function.get("name") {
        out.insert("name".to_owned(), name.clone());
    }
    Value::Object(out)
}
