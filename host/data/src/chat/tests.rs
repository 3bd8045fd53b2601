use super::template::{LARGEST, SHOWN};
use super::*;

#[test]
fn renders_chatml_with_and_without_the_assistants_opening() {
    let source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m['content'].strip() + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
    let messages = [ChatMessage { role: "user".into(), content: " hi ".into(), ..ChatMessage::default() }];
    assert_eq!(chat.render(&messages, false, &TemplateVariables::default()).unwrap(), "<|im_start|>user\nhi<|im_end|>\n");
    assert!(chat.render(&messages, true, &TemplateVariables::default()).unwrap().ends_with("<|im_start|>assistant\n"));
}

fn told(source: &str, kwargs: Json, columns: Json) -> Result<String, String> {
    let (Json::Object(kwargs), Json::Object(columns)) = (kwargs, columns) else { panic!("a test gives objects") };
    let chat = ChatTemplate::new(source.into(), "<s>".into(), String::new())?.with_variables(kwargs, "2024-07-06".parse().ok());
    chat.render(&[ChatMessage::default()], false, &TemplateVariables::from_columns(&columns)?).map_err(|e| e.to_string())
}

#[test]
fn a_template_is_told_tools_variables_and_a_date() {
    use serde_json::json;
    let source =
        "{{ enable_thinking }}{{ x }}{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{{ messages | length }}";
    let of_row = json!({"chat_template_kwargs": {"x": 2, "messages": []}, "tools": [{"name": "f"}], "other": 1});
    assert_eq!(told(source, json!({"x": 1, "enable_thinking": false}), of_row).unwrap(), r#"False2<s>[{"name": "f"}]1"#);
    let in_text = json!({"chat_template_kwargs": r#"{"bos_token": ""}"#, "tools": ""});
    assert_eq!(told(source, json!({"x": 1, "enable_thinking": true}), in_text).unwrap(), "True11");
    let date = "{{ strftime_now('%d %b %Y') if strftime_now is defined }}";
    assert_eq!(told(date, json!({}), json!({})).unwrap(), "06 Jul 2024");
    assert_eq!(rendered(date, json!([])), "");
    let chat = ChatTemplate::new("{{ strftime_now('%Y') }}".into(), String::new(), String::new()).unwrap();
    let error = chat.render(&[], false, &TemplateVariables::default()).unwrap_err().to_string();
    assert!(error.contains("as in --strftime-now 2024-07-26"), "{error}");
    assert!(told("{{ strftime_now('%!') }}", json!({}), json!({})).unwrap_err().contains("strftime_now"));
    assert!(told("", json!({}), json!({"tools": 3})).unwrap_err().contains("list of JSON schemas"));
    assert!(told("", json!({}), json!({"chat_template_kwargs": "{"})).unwrap_err().contains("not JSON"));
}

#[test]
fn what_python_does_with_strings_and_with_nothing_is_done_here() {
    let one = |source: &str| rendered(source, serde_json::json!([{"role": "user", "content": "hi"}]));
    assert_eq!(one("{% for m in messages %}{{ '%s says %s%d' % (m.role, m.content, 3) }}{% endfor %}"), "user says hi3");
    assert_eq!(one("{{ tools is iterable }}{{ messages is iterable }}{{ 'x' is iterable }}"), "FalseTrueTrue");
    let reasoned = |name: &str| {
        let message = serde_json::json!({"role": "assistant", "content": "a", name: "hm"});
        rendered("{% for m in messages %}{{ m.reasoning_content }} {{ m.thinking }}{% endfor %}", serde_json::json!([message]))
    };
    assert!(REASONING.into_iter().all(|name| reasoned(name) == "hm hm"));
    // A namespace that only a generation block or a macro assigns.
    let assigned =
        "{% set ns = namespace(x=1) %}{% generation %}{% set ns.x = 2 if ns is defined else 3 %}{% endgeneration %}{{ ns.x }}";
    assert_eq!(one(assigned), "2");
    assert_eq!(one("{% set ns = namespace(x=1) %}{% macro f() %}{% set ns.x = 2 %}{% endmacro %}{{ f() }}{{ ns.x }}"), "2");
    // Formatting with the format in a variable, and arithmetic.
    assert_eq!(one("{% set x = 'a%s' %}{% set y = 5 %}{% set z = 3 %}{{ x % 'b' }}{{ y % z }}{{ 2 * y % z }}"), "ab21");
    assert_eq!(one("{% set x = '%s-%d' %}{{ x % (messages[0].content, 3) + '!' }}"), "hi-3!");
    assert_eq!(one("{% set x = '%s%%s' %}{{ x % 'b' % 'c' }}"), "bc");
}

fn rendered(source: &str, messages: Json) -> String {
    let messages: Vec<ChatMessage> = serde_json::from_value(messages).unwrap();
    ChatTemplate::new(source.into(), String::new(), String::new())
        .unwrap()
        .render(&messages, false, &TemplateVariables::default())
        .unwrap()
}

#[test]
fn a_message_brings_what_else_it_has_and_json_is_written_as_python_does() {
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{% endfor %}";
    let call = serde_json::json!({"name": "w", "arguments": {"b": ["<é>", 1], "a": null}});
    let messages = serde_json::json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
    assert_eq!(rendered(source, messages), r#"None{"name": "w", "arguments": {"b": ["<é>", 1], "a": null}}"#);
    // Like DeepSeek's template, which tells a null content from an empty one.
    let calling = "{% for m in messages %}{{ 'calls ' ~ m.tool_calls[0] if m['content'] is none else m['content'] }};{% endfor %}{{ messages[0].content | trim }}";
    let turn = |content: Json| serde_json::json!({"role": "assistant", "content": content, "tool_calls": ["f"]});
    let messages = serde_json::json!([turn(Json::Null), turn("".into()), {"role": "assistant", "tool_calls": ["g"]}]);
    assert_eq!(rendered(calling, messages), "calls f;;calls g;None");
}

#[test]
fn markers_of_what_the_assistant_says_write_nothing_and_there_are_no_tools() {
    let source = "{% for m in messages %}a {%- generation -%} {{ m.content }}{% endgeneration %}b{% endfor %}{% if tools is not none %}t{% endif %}";
    assert_eq!(rendered(source, serde_json::json!([{"role": "user", "content": "x"}])), "axb");
}

#[test]
fn a_template_that_never_ends_or_makes_too_much_is_stopped_with_one_line() {
    let doubled = |more: &str| {
        format!(
            "{{% set ns = namespace(x='0123456789') %}}{{% for i in range(40) %}}{{% set ns.x = {more} %}}{{% endfor %}}{{{{ ns.x }}}}"
        )
    };
    let seen = "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
    for source in [
        "{% for a in range(10000) %}{% for b in range(10000) %}{{ b }}{% endfor %}{% endfor %}",
        "{{ 'a\nb' | indent(99999999999) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ range(1000000000000) | join(',') }}",
        "{{ '%99999999999d' | format(1) }}",
        "{{ messages | tojson(indent=99999999999) }}{{ 'x' | center(99999999999) }}",
        "{{ ' ' * 1000000 | replace(' ', ' ' * 1000000) }}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='0123456789') %}{% for i in range(40) %}{% set ns.x = m(ns.x) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        &doubled("ns.x + ns.x"),
        &doubled("ns.x ~ ns.x"),
        &doubled("ns.x * 2"),
        &doubled("[ns.x, ns.x] | join"),
        &doubled("[ns.x, ns.x] | string"),
        &doubled("ns.x | replace('0', ns.x)"),
        &(seen.to_owned() + "{{ ns.x | join }}"),
        &format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        &format!("{{{{ {}1{} }}}}", "[".repeat(100_000), "]".repeat(100_000)),
        &format!("{{{{ x{} }}}}", ".x".repeat(100_000)),
        &format!("{{{{ 1{} }}}}", " + 1".repeat(200_000)),
        &"{% if true %}".repeat(50_000),
        &"x".repeat(LARGEST + 1),
    ] {
        let message = ChatMessage { role: "user".into(), content: "hi".into(), ..ChatMessage::default() };
        let made = ChatTemplate::new(source.to_owned(), String::new(), String::new());
        match made.and_then(|chat| chat.render(&[message], false, &TemplateVariables::default()).map_err(|e| e.to_string())) {
            Ok(text) => assert!(text.len() < 1 << 20, "{source:.100}: {} bytes", text.len()),
            Err(error) => assert!(!error.contains('\n') && error.len() < 2 * SHOWN, "{source:.100}: {error}"),
        }
    }
}

#[test]
fn what_is_nested_deeply_is_dropped_without_harm() {
    let source =
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [[[[[[[[ns.x]]]]]]]] %}{% endfor %}done";
    let _ =
        ChatTemplate::new(source.into(), String::new(), String::new()).unwrap().render(&[], false, &TemplateVariables::default());
}

/// Renders a template, and returns the text or the error.
fn tried(source: &str) -> Result<String, String> {
    let message = ChatMessage { role: "user".into(), content: "hi".into(), ..ChatMessage::default() };
    let chat = ChatTemplate::new(source.to_owned(), String::new(), String::new())?;
    chat.render(&[message], false, &TemplateVariables::default()).map_err(|e| e.to_string())
}

/// Expressions that traverse a whole value.
const LOOKS: [&str; 21] = [
    "V|tojson",
    "V|tojson(indent=1)",
    "V|string",
    "V|join",
    "V|join(',')",
    "V|pprint",
    "V ~ ''",
    "V",
    "V == V",
    "V != [V]",
    "V < [V]",
    "[V, V]|min",
    "[V, V]|max",
    "[V, V]|sort",
    "[V, V]|unique|list",
    "[V, V]|groupby(0)|list",
    "V in [V]",
    "{V: 1}",
    "'%s' % [V]",
    "'{}'.format(V)",
    "V|sum",
];

#[test]
fn no_value_of_a_template_holds_itself() {
    for stored in [
        "ns",
        "[ns]",
        "{'a': ns}",
        "(1, ns)",
        "[[ns]]",
        "[ns] + [1]",
        "[ns] * 2",
        "[ns][::-1]",
        "[1, ns]|reverse",
        "namespace(y=ns)",
        "{'a': ns}.values()",
        "[{'a': ns}.items()]",
    ] {
        for look in LOOKS {
            let look = look.replace('V', "ns.x");
            let source = format!("{{% set ns = namespace() %}}{{% set ns.x = {stored} %}}{{{{ {look} }}}}");
            let error = tried(&source).unwrap_err();
            assert!(error.contains("a namespace can't hold a namespace"), "{source}: {error}");
        }
    }
    for source in [
        "{% set ns = namespace() %}{% set ns.x %}a{% endset %}{% set ns.x = [ns.x, ns] %}",
        "{% set ns = namespace() %}{% set a, ns.x = 1, [ns] %}",
        "{% set a = namespace() %}{% set b = namespace() %}{% set a.x = b %}{% set b.x = a %}{{ a.x|tojson }}",
        "{% set ns = namespace() %}{% macro m(n) %}{% set n.x = [n] %}{% endmacro %}{{ m(ns) }}",
        "{% set ns = namespace() %}{% for i in [1, ns] %}{% set ns.x = loop %}{% endfor %}{{ ns.x }}",
    ] {
        assert!(tried(source).unwrap_err().contains("a namespace can't hold a namespace"), "{source}");
    }
    // Targets that are not plain attributes, and in-place changes.
    for source in [
        "{% set ns = namespace() %}{% set (ns.x) = [ns] %}{{ ns.x|tojson }}",
        "{% set ns = namespace(y=namespace) %}{% set ns.y.x = [ns] %}",
        "{% set ns = namespace() %}{% for ns.x in [[ns]] %}{{ ns.x|tojson }}{% endfor %}",
        "{% set l = [] %}{% do l.append(l) %}{{ l|tojson }}",
        "{% set d = {} %}{% do d.update({'d': d}) %}{{ d|tojson }}",
        "{% set d = {} %}{% do d.setdefault('d', d) %}{{ d|tojson }}",
    ] {
        assert!(tried(source).is_err(), "{source}");
    }
    // The assigned loop is a copy.
    assert_eq!(
        tried("{% set ns = namespace() %}{% for i in [1, 2] %}{% set ns.x = loop %}{% endfor %}{{ ns.x.index }}").unwrap(),
        "2"
    );
}

#[test]
fn deep_values_are_refused_or_written_and_never_end_the_process() {
    let straight = "{% set x = [x] %}".repeat(4000);
    let macros = format!(
        "{{% macro m(x, n) %}}{}{{{{ m([x], n + 1) if n < 60 else (LOOK) }}}}{{% endmacro %}}{{{{ m(1, 0) }}}}",
        "{% set x = [x] %}".repeat(1000)
    );
    for look in LOOKS.map(|look| look.replace('V', "x")) {
        for source in [format!("{{% set x = 1 %}}{straight}{{{{ {look} }}}}"), macros.replace("LOOK", &look)] {
            // Comparing and hashing are left to the engine: either the stack suffices, or they are stopped.
            let _ = tried(&source).map_err(|error| assert!(error.len() < 2 * SHOWN, "{look}: {error}"));
        }
    }
    let views = "{% set x = {'a': x}.values() %}".repeat(4000);
    for look in LOOKS {
        let _ = tried(&format!("{{% set x = 1 %}}{views}{{{{ {} }}}}", look.replace('V', "x")));
    }
    let stored = format!("{{% set x = 1 %}}{straight}{{% set ns = namespace() %}}{{% set ns.x = x %}}");
    assert!(tried(&stored).unwrap_err().contains("levels of values"));
    let shared = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    let error = tried(shared).unwrap_err();
    assert!(error.contains("values at once") || error.contains("MiB of memory"), "{error}");
}

#[test]
fn templates_that_nest_or_make_too_much_fail_soon() {
    let cases = [
        ("{% if true %}".repeat(20_000), "tags"),
        ("{% if true %}".repeat(5000), "blocks within each other"),
        (format!("{{% if true %}}{}{{% endif %}}", "{% elif true %}".repeat(5000)), "blocks within each other"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(20_000)), "words and signs"),
        (format!("{{{{ {}1{} }}}}", "(".repeat(1000), ")".repeat(1000)), "brackets within each other"),
        ("{{ range(1000000000) | length }}".into(), "more than 100000"),
        ("{{ range(100000) | list * 100000 }}".into(), ""),
        ("{{ 'a' * 1000000000 }}".into(), ""),
        ("{{ '%1000000000d' % 1 }}".into(), "memory"),
        ("{{ '%1000000000d' | format(1) }}".into(), "memory"),
        ("{{ '%.1000000000f' % 1 }}".into(), "digits"),
        ("{{ '{:1000000000}'.format(1) }}".into(), ""),
        ("{{ '{:01000000000,}'.format(1) }}".into(), "memory"),
        ("{{ '{:{}}'.format('x', 1000000000) }}".into(), "memory"),
        ("{{ '{:.1000000000f}'.format(1) }}".into(), "digits"),
        ("{{ [1] * 99999999 }}".into(), "memory"),
        ("{{ range(100000)[::-1] | list | pprint | length }}".into(), ""),
        ("{{ 'x'.center(1000000000) }}".into(), "memory"),
        ("{{ 'x' | center(1000000000) }}".into(), "memory"),
        ("{{ 'x'.zfill(1000000000) }}{{ 'x'.ljust(1000000000) }}".into(), "memory"),
        ("{{ 'a\nb' | indent(1000000000) }}".into(), ""),
        ("{{ ('a' * 100000).replace('a', 'b' * 100000) }}".into(), "memory"),
        ("{{ ('a' * 100000) | replace('a', 'b' * 100000) }}".into(), "memory"),
        ("{{ range(100000) | join('x' * 100000) }}".into(), "memory"),
        ("{{ ('x' * 100000).join(['a'] * 100000) }}".into(), "memory"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(), "recursion"),
        ("{% macro m(n=1) %}{{ m(n + 1) }}{% endmacro %}{{ m() }}".into(), "recursion"),
        ("{% macro m() %}{{ m(1, *varargs) }}{% endmacro %}{{ m() }}".into(), "recursion"),
        ("{% for i in [1] recursive %}{{ loop([i]) }}{% endfor %}".into(), "recursion"),
        ("{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}".into(), "recursion"),
        ("{% include 'chat' %}".into(), "can't load other templates"),
        ("{{ [1, 2] | tojson(indent='x' * 10000000) | length }}".repeat(10), ""),
    ];
    for (source, part) in cases {
        let result = tried(&source);
        if part.is_empty() {
            let _ = result.map(|text| assert!(text.len() < 1 << 28));
        } else {
            let error = result.expect_err(&source[..source.len().min(100)]);
            assert!(error.contains(part) && error.len() < 2 * SHOWN, "{source:.100}: {error}");
        }
    }
}

#[test]
fn what_renderings_leave_behind_is_counted() {
    // A loop that remembers itself is never freed.
    let source = "{% for i in [1] %}{% set size = 10000000 %}{% set big = 'x' * size %}{{ loop.changed(loop, big) }}{% endfor %}";
    let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
    let results: Vec<_> = (0..10).map(|_| chat.render(&[], false, &TemplateVariables::default())).collect();
    assert!(results[0].is_ok());
    let error = results.into_iter().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("never frees"), "{error}");
    let plain = ChatTemplate::new("{{ 'x' * 10000000 }}".into(), String::new(), String::new()).unwrap();
    assert!((0..10).all(|_| plain.render(&[], false, &TemplateVariables::default()).is_ok()));
}

/// `apply_chat_template(..., tools=[])` of transformers renders a list, with the template for tools.
#[test]
fn an_empty_list_of_tools_is_a_list() {
    let source = "{{ tools is none }} {{ tools }}";
    let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
    let with = |tools| {
        let columns = serde_json::json!({ "tools": tools });
        TemplateVariables::from_columns(columns.as_object().unwrap()).unwrap()
    };
    for (tools, text) in
        [(serde_json::json!([]), "False []"), (serde_json::json!("[]"), "False []"), (serde_json::json!(null), "True None")]
    {
        let extras = with(tools);
        assert_eq!(chat.render(&[], false, &extras).unwrap(), text);
        assert!(!extras.has_tools());
    }
    let chat = chat.with_tool_use(Some("for tools".into())).unwrap();
    assert_eq!(chat.render(&[], false, &with(serde_json::json!([]))).unwrap(), "for tools");
}

#[test]
fn a_conversation_with_tools_has_its_own_template() {
    let chat = ChatTemplate::new("{{ bos_token }}default{{ boi_token }}".into(), "<s>".into(), String::new()).unwrap();
    let chat = chat.with_tool_use(Some("{{ bos_token }}tools{{ tools[0].name }} <function={{ x }}".into())).unwrap();
    let tokens = serde_json::json!({"bos_token": "<s>", "boi_token": "<i>"});
    let kwargs = serde_json::json!({"x": 1});
    let chat = chat.with_tokens(tokens.as_object().unwrap().clone()).with_variables(kwargs.as_object().unwrap().clone(), None);
    let with = TemplateVariables { tools: serde_json::json!([{"name": "f"}]), ..TemplateVariables::default() };
    assert_eq!(chat.render(&[], false, &TemplateVariables::default()).unwrap(), "<s>default<i>");
    assert_eq!(chat.render(&[], false, &with).unwrap(), "<s>toolsf <function=1");
    assert_eq!((chat.calls(false), chat.calls(true)), (ToolCallFormat::Hermes, ToolCallFormat::Functions));
    let wrong = ChatTemplate::new(String::new(), String::new(), String::new()).unwrap().with_tool_use(Some("{% if".into()));
    assert!(wrong.unwrap_err().contains("tool_use"));
}

/// Returns the cases in a file of `tests/parity/check_templates.py` whose results differ.
fn differences(file: &str) -> Vec<String> {
    let whole: Json = serde_json::from_str(file).unwrap();
    let mut other = Vec::new();
    for case in whole["cases"].as_array().unwrap() {
        let of = |key: &str| case.get(key).unwrap_or(&whole[key]).clone();
        let messages: Vec<ChatMessage> = serde_json::from_value(of("messages")).unwrap();
        let extras = TemplateVariables { tools: of("tools"), kwargs: of("variables").as_object().unwrap().clone() };
        let source = case["source"].as_str().unwrap();
        let made = ChatTemplate::new(source.into(), "<s>".into(), "</s>".into());
        let generate = case["generate"] == true;
        let given = made.and_then(|chat| chat.render(&messages, generate, &extras).map_err(|e| e.to_string()));
        let same = match (&given, case["text"].as_str()) {
            (Ok(given), Some(text)) => given == text,
            (given, text) => given.is_err() == text.is_none(),
        };
        if same == case["differs"].is_string() {
            let name = case["name"].as_str().unwrap_or(source);
            other.push(format!("{name}\n  jinja2: {}{}\n  here: {given:?}", case["text"], case["error"]));
        }
    }
    other
}

/// `tests/parity/check_templates.py` writes the file, and another with complete templates; a variable holds the path.
#[test]
fn snippets_give_what_jinja_gives() {
    let mut other = differences(include_str!("../../../../tests/parity/check_templates.json"));
    if let Some(path) = std::env::var_os("RLHOST_TEMPLATES") {
        other.extend(differences(&std::fs::read_to_string(path).unwrap()));
    }
    assert!(other.is_empty(), "{} of the snippets:\n{}", other.len(), other.join("\n"));
}
