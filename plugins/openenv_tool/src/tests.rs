use super::*;
use rlhost_plugin_sdk::environment::{Call, testing::start};
use rlhost_plugin_sdk::http::testing::answering;
use rlhost_plugin_sdk::http::{Request, Response};
use rlhost_plugin_sdk::serde_json::from_slice;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Requests so far: method or path, and parameters or body.
type RequestHistory = Rc<RefCell<Vec<(String, Value)>>>;

/// A server whose tool `count` counts the calls of a session, as OpenEnv answers.
fn counting(seen: RequestHistory) -> impl FnMut(&Request) -> Result<Response, String> {
    let mut sessions: BTreeMap<String, u64> = BTreeMap::new();
    move |request| {
        let body: Value = from_slice(&request.body).unwrap();
        assert_eq!(request.url, "http://env:8000/mcp");
        let (method, params) = (body["method"].as_str().unwrap(), &body["params"]);
        seen.borrow_mut().push((method.to_owned(), params.clone()));
        let session = params["session_id"].as_str().unwrap_or_default().to_owned();
        let refused =
            |message: &str| json!({ "jsonrpc": "2.0", "id": body["id"], "error": { "code": -32602, "message": message } });
        let given = |result: Value| json!({ "jsonrpc": "2.0", "id": body["id"], "result": result });
        Ok(Response::json(
            200,
            &match method {
                "openenv/session/create" => {
                    let name = format!("s{}", sessions.len());
                    sessions.insert(name.clone(), 0);
                    given(json!({ "session_id": name }))
                }
                _ if !sessions.contains_key(&session) => refused(&format!("Unknown session_id: {session}")),
                "tools/list" => {
                    let schema = json!({ "type": "object", "properties": { "by": { "type": "integer" } } });
                    given(json!({ "tools": [{ "name": "count", "description": "Counts.", "inputSchema": schema }] }))
                }
                "tools/call" if params["name"] != "count" => {
                    given(json!({ "content": [{ "type": "text", "text": "Unknown tool" }], "is_error": true }))
                }
                "tools/call" => {
                    let count = sessions.get_mut(&session).unwrap();
                    *count += params["arguments"]["by"].as_u64().unwrap_or(1);
                    let text = json!({ "count": count, "reward": 0.5, "done": *count >= 3 }).to_string();
                    given(json!({ "content": [{ "type": "text", "text": text }], "is_error": false }))
                }
                _ => {
                    sessions.remove(&session);
                    given(json!({ "session_id": session, "closed": true }))
                }
            },
        ))
    }
}

fn turn(episode: u64, calls: &[(&str, &str)]) -> Turn {
    let call = |(name, arguments): &(&str, &str)| Call { id: "0".into(), name: (*name).into(), arguments: (*arguments).into() };
    Turn { episode, text: String::new(), calls: calls.iter().map(call).collect(), finished: true }
}

fn settings() -> OpenEnvSettings {
    let (reward, done) = (Some("/reward".into()), Some("/done".into()));
    OpenEnvSettings { url: "http://env:8000/".into(), reward, done, bad_call: -1.0, ..OpenEnvSettings::default() }
}

#[test]
fn each_episode_has_a_session_whose_tools_the_model_calls() {
    let seen = RequestHistory::default();
    answering(counting(seen.clone()), || {
        let environment = OpenEnv::new(settings()).unwrap();
        let (mut episodes, openings): (Vec<OpenEnvEpisode>, Vec<Opening>) =
            environment.begin(&[start(1, &[]), start(2, &[])]).unwrap().into_iter().unzip();
        assert_eq!((openings[1].tools[0].name.as_str(), openings.len()), ("count", 2));
        assert!(openings[0].tools[0].parameters.contains("\"by\""));
        let turns = [
            turn(0, &[("count", "{}"), ("count", r#"{"by": 1}"#), ("count", "by 1")]),
            turn(1, &[("count", r#"{"by": 5}"#), ("more", "{}")]),
        ];
        let mut asked: Vec<(&mut OpenEnvEpisode, &Turn)> = episodes.iter_mut().zip(&turns).collect();
        let replies = environment.step(&mut asked).unwrap();
        let texts: Vec<&str> = replies[0].messages.iter().map(|m| m.content.as_str()).collect();
        assert!(texts[1].contains("\"count\":2") && texts[2].starts_with("error: the arguments of count"), "{texts:?}");
        assert_eq!((replies[0].reward, replies[0].done), (Some(0.0), false));
        assert_eq!((replies[1].reward, replies[1].done), (Some(-0.5), true));
        assert_eq!(replies[1].messages[1].content, "error: Unknown tool");
        let silent = turn(0, &[]);
        let over = environment.step(&mut [(&mut episodes[0], &silent)]).unwrap();
        assert!(over[0].done && over[0].messages.is_empty() && over[0].reward == Some(0.0));
        let metrics = environment.finish(episodes);
        let of = |name: &str| metrics.iter().filter(|m| m.name == name).map(|m| m.value).sum::<f64>();
        assert_eq!((of("openenv_tool/calls"), of("openenv_tool/failed_calls")), (5.0, 2.0));
    });
    let seen = seen.borrow();
    let count = |method: &str| seen.iter().filter(|(name, _)| name == method).count();
    assert_eq!((count("openenv/session/create"), count("tools/call"), count("openenv/session/close")), (2, 4, 2));
}

#[test]
fn a_server_that_fails_is_not_told_to_the_model() {
    let lost = |request: &Request| {
        let body: Value = from_slice(&request.body).unwrap();
        match body["method"].as_str().unwrap() {
            "openenv/session/create" => Ok(Response::json(200, &json!({ "result": { "session_id": "a" } }))),
            "tools/list" => Ok(Response::json(200, &json!({ "result": { "tools": [] } }))),
            _ => Ok(Response::json(200, &json!({ "error": { "code": -32602, "message": "Unknown session_id: a" } }))),
        }
    };
    answering(lost, || {
        let environment = OpenEnv::new(settings()).unwrap();
        let (mut episode, _) = environment.begin(&[start(1, &[])]).unwrap().remove(0);
        let asked = turn(0, &[("count", "{}")]);
        let error = environment.step(&mut [(&mut episode, &asked)]).unwrap_err().to_string();
        assert!(error.contains("Unknown session_id"), "{error}");
    });
    for (answer, words) in [
        (Ok(Response { status: 500, headers: Vec::new(), body: b"oh no".to_vec() }), "status 500: oh no"),
        (Ok(Response { status: 200, headers: Vec::new(), body: b"<html>".to_vec() }), "not JSON"),
        (Ok(Response::json(200, &json!({ "error": { "message": "Server at capacity" } }))), "Server at capacity"),
        (Ok(Response::json(200, &json!({ "result": {} }))), "opened no session"),
        (Err("refused".to_owned()), "refused"),
    ] {
        let error =
            answering(move |_| answer.clone(), || OpenEnv::new(settings()).unwrap().begin(&[start(1, &[])]).err().unwrap());
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn one_action_is_a_step() {
    let echo = |request: &Request| {
        let body: Value = from_slice(&request.body).unwrap();
        assert_eq!((request.url.as_str(), &body["action"]["mode"]), ("http://env:8000/step", &json!("loud")));
        let said = body["action"]["message"].as_str().unwrap();
        Ok(Response::json(200, &json!({ "observation": { "echo": said }, "reward": said.len(), "done": false })))
    };
    answering(echo, || {
        let action = Map::from_iter([("mode".to_owned(), json!("loud"))]);
        let settings = OpenEnvSettings { protocol: Protocol::Step, observation: Some("/echo".into()), action, ..settings() };
        let environment = OpenEnv::new(settings).unwrap();
        let (mut episode, opening) = environment.begin(&[start(1, &[])]).unwrap().remove(0);
        assert!(opening.tools.is_empty());
        let said = Turn { text: "hello".into(), ..turn(0, &[]) };
        let reply = environment.step(&mut [(&mut episode, &said)]).unwrap().remove(0);
        assert_eq!((reply.messages[0].content.as_str(), reply.reward, reply.done), ("hello", Some(5.0), false));
        assert!(environment.finish(vec![episode]).is_empty());
    });
}

#[test]
fn a_reply_is_short_and_has_no_marks() {
    assert_eq!(server::readable("a<|im_end|>b</s> [INST]", 100), "a< |im_end|>b< /s> [ INST]");
    assert_eq!(server::readable("1 < 2, a[0] <b c>", 100), "1 < 2, a[0] <b c>");
    assert_eq!(server::readable("näh", 2), "n\n(2 more characters)");
}

#[test]
fn wrong_settings_are_refused_by_name() {
    for (settings, named) in [
        (OpenEnvSettings { url: "localhost:8000".into(), ..settings() }, "url"),
        (OpenEnvSettings { reward: Some("reward".into()), ..settings() }, "reward"),
    ] {
        let error = OpenEnv::new(settings).err().unwrap().to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
}
