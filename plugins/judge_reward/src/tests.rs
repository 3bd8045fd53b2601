use super::*;
use crate::verdict::{expected, field, number, winner};
use rlhost_plugin_sdk::bindings::contract::reward::Scores;
use rlhost_plugin_sdk::http::{Request, Response, testing::answering};
use rlhost_plugin_sdk::reward::testing::Case;
use rlhost_plugin_sdk::serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;

/// Scores cases together; each sample borrows its case's batch.
fn nested(cases: &[Case], samples: Vec<Sample<'_>>, judge: &Judge) -> Result<Scores, Error> {
    match cases.split_first() {
        None => score(judge, &samples),
        Some((case, rest)) => case.run(|sample| {
            let mut samples = samples.clone();
            samples.push(*sample);
            nested(rest, samples, judge)
        }),
    }
}

/// Scores completions of one prompt, with the answer that the judge gives to each request.
fn scored(
    settings: JudgeRewardSettings,
    completions: &[&str],
    server: impl FnMut(&Value) -> Result<Response, String> + 'static,
) -> Result<Scores, Error> {
    let judge = Judge::new(settings)?;
    let mut server = server;
    let columns = vec![("gold".to_owned(), "\"gold\"".to_owned())];
    let case = |text: &&str| Case {
        prompt: "Say {completion}".into(),
        completion: (*text).into(),
        columns: columns.clone(),
        ..Case::default()
    };
    let cases: Vec<Case> = completions.iter().map(case).collect();
    let read = move |request: &Request| server(&rlhost_plugin_sdk::serde_json::from_slice(&request.body).unwrap());
    answering(read, || nested(&cases, Vec::new(), &judge))
}

fn says(text: &str) -> Result<Response, String> {
    Ok(Response::json(200, &json!({ "choices": [{ "message": { "content": text } }] })))
}

fn metric(scores: &Scores, name: &str) -> f64 {
    scores.metrics.iter().find(|metric| metric.name == format!("judge_reward/{name}")).unwrap().value
}

#[test]
fn numbers_are_read_from_what_a_judge_writes() {
    for (text, score) in [
        ("It is good. [[7]]", 7.0),
        ("[[3]] no, [[ 8.5 ]].", 8.5),
        ("Score: 7/10", 7.0),
        ("2 errors, so 4.", 4.0),
        ("<think>10 at first</think>\n-1.5", -1.5),
    ] {
        assert_eq!(number(text), Some(score), "{text}");
    }
    for none in ["", "very good", "<think>7</think> good", "[[good]]", "..-"] {
        assert_eq!(number(none), None, "{none}");
    }
    assert_eq!(field("```json\n{\"reasoning\": \"ok\", \"score\": 4}\n```"), Some(4.0));
    assert_eq!(field("{\"score\": \"4.5\"}"), Some(4.5));
    assert_eq!((field("4"), field("}{"), field("{\"score\": true}")), (None, None, None));
    assert_eq!((winner("so [[A]]"), winner("b."), winner("[[C]]"), winner("A or B")), (Some(1.0), Some(0.0), Some(0.5), None));
}

#[test]
fn probabilities_of_answers_give_their_mean() {
    let choice = |pairs: &[(&str, f64)]| {
        let candidates: Vec<_> = pairs.iter().map(|(token, p)| json!({ "token": token, "logprob": p.ln() })).collect();
        json!({ "logprobs": { "content": [{ "token": "\n", "top_logprobs": [] }, { "token": "x", "top_logprobs": candidates }] } })
    };
    let answers = [("yes".to_owned(), 1.0), ("no".to_owned(), 0.0)];
    let mean = expected(&choice(&[("Yes", 0.5), (" yes", 0.1), ("no", 0.2), ("maybe", 0.2)]), &answers).unwrap();
    assert!((mean - 0.75).abs() < 1e-12, "{mean}");
    assert_eq!(expected(&choice(&[("maybe", 0.95), ("yes", 0.05)]), &answers), None);
    assert_eq!(expected(&json!({ "message": {} }), &answers), None);
}

#[test]
fn a_batch_asks_each_question_once_and_counts_what_it_lost() {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let seen = asked.clone();
    let server = move |body: &Value| {
        let question = body["messages"][0]["content"].as_str().unwrap().to_owned();
        seen.borrow_mut().push(question.clone());
        match () {
            () if question.contains("]\ngood\n[") => says("[[10]]"),
            () if question.contains("]\nfair\n[") => says("[[5.5]]"),
            () if question.contains("]\nodd\n[") => says("I can't say."),
            () if question.contains("]\nhigh\n[") => says("[[11]]"),
            () => Err("the connection broke".to_owned()),
        }
    };
    let scores = scored(JudgeRewardSettings::default(), &["good", "fair", "good", "odd", "high", "lost"], server).unwrap();
    assert_eq!(scores.rewards, [Some(1.0), Some(0.5), Some(1.0), None, None, None]);
    assert_eq!(["requests", "unanswered", "unreadable"].map(|name| metric(&scores, name)), [5.0, 1.0, 2.0]);
    // Inserted text is not expanded again.
    assert!(asked.borrow()[0].contains("Say {completion}") && asked.borrow()[0].contains("from 1 to 10"));
}

#[test]
fn a_batch_that_nothing_answers_is_an_error_with_the_reason() {
    let refused = |body: &'static str| move |_: &Value| Ok(Response { status: 401, headers: Vec::new(), body: body.into() });
    let error = scored(JudgeRewardSettings::default(), &["a", "b"], refused("no key")).unwrap_err().to_string();
    assert!(error.contains("none of 2 requests") && error.contains("status 401: no key"), "{error}");
}

#[test]
fn an_error_of_a_server_is_one_line() {
    let refused = |body: &'static str| move |_: &Value| Ok(Response { status: 500, headers: Vec::new(), body: body.into() });
    let error = |body| scored(JudgeRewardSettings::default(), &["a", "b"], refused(body)).unwrap_err().to_string();
    let page = error("<html>\r\n  <h1>Internal\n\tServer Error</h1>\n</html>\n");
    assert!(page.contains("status 500: <html> <h1>Internal Server Error</h1> </html>"), "{page}");
    for body in
        ["{\"error\": {\"message\": \"out of\\nmemory\"}}", "{\"error\": \"out of memory\"}", "{\"detail\": \"out of memory\"}"]
    {
        assert!(error(body).contains("status 500: out of memory"), "{}", error(body));
    }
}

#[test]
fn a_judge_that_never_gives_a_number_shows_an_answer() {
    let texts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let error = scored(JudgeRewardSettings::default(), &texts, |_| says("I would say:\nquite good.")).unwrap_err().to_string();
    assert!(error.contains("none of 8 answers has a number from 1 to 10; the first is: I would say: quite good."), "{error}");
    // In a small batch, the judge may have no verdict by chance.
    let scores = scored(JudgeRewardSettings::default(), &texts[..7], |_| says("quite good")).unwrap();
    assert_eq!(metric(&scores, "unreadable"), 7.0);
    let judge = Judge::new(JudgeRewardSettings::default()).unwrap();
    let warning = judge.describe_unreadable(&[Err("the connection broke".to_owned()), says("quite\ngood")]);
    assert_eq!(warning, "none of 2 answers has a number from 1 to 10; the first is: quite good");
    let of = |settings, answer: &'static str| scored(settings, &texts, move |_| says(answer)).unwrap_err().to_string();
    let json = JudgeRewardSettings { scoring: JudgeScoring::Json, ..JudgeRewardSettings::default() };
    let said = of(json, "{\"points\": 3}").replace('\\', "");
    assert!(said.contains("JSON with a field \"score\" from 1 to 10; the first is: {\"points\": 3}"), "{said}");
    let logprobs = JudgeRewardSettings { scoring: JudgeScoring::Logprobs, ..JudgeRewardSettings::default() };
    assert!(of(logprobs, "7").contains("top_logprobs"));
}

#[test]
fn comparisons_are_asked_in_both_orders() {
    let settings = || JudgeRewardSettings {
        scoring: JudgeScoring::Pairwise,
        reference: Some("gold".into()),
        ..JudgeRewardSettings::default()
    };
    // Prefers the first answer, unless one is best.
    let server = |body: &Value| {
        let question = body["messages"][0]["content"].as_str().unwrap();
        says(if question.contains("Answer B]\nbest") { "[[B]]" } else { "[[A]]" })
    };
    assert_eq!(scored(settings(), &["best", "other"], server).unwrap().rewards, [Some(1.0), Some(0.5)]);
    let missing = JudgeRewardSettings { reference: Some("silver".into()), ..settings() };
    assert!(scored(missing, &["a"], |_| says("[[A]]")).unwrap_err().to_string().contains("silver"));
}

#[test]
fn requests_have_the_key_by_name_and_what_the_scoring_needs() {
    let settings = JudgeRewardSettings {
        url: "https://api.openai.com/v1/".into(),
        secret: Some("JUDGE_KEY".into()),
        scoring: JudgeScoring::Json,
        extra: [("seed".to_owned(), json!(3))].into_iter().collect(),
        ..JudgeRewardSettings::default()
    };
    let seen = Rc::new(RefCell::new(Vec::new()));
    let requests = seen.clone();
    let judge = Judge::new(settings).unwrap();
    let server = move |request: &Request| {
        requests.borrow_mut().push(request.clone());
        says("{\"reasoning\": \"\", \"score\": 1}")
    };
    Case::default().run(|sample| answering(server, || score(&judge, &[*sample]))).unwrap();
    let request = &seen.borrow()[0];
    assert_eq!(request.url, "https://api.openai.com/v1/chat/completions");
    assert!(request.headers.contains(&("Authorization".into(), "Bearer {{JUDGE_KEY}}".into())));
    let body: Value = rlhost_plugin_sdk::serde_json::from_slice(&request.body).unwrap();
    assert_eq!((&body["seed"], &body["response_format"]["type"]), (&json!(3), &json!("json_schema")));
}

#[test]
fn the_highest_score_is_one_that_the_scoring_can_read() {
    for (scoring, most) in [(JudgeScoring::Number, 10.0), (JudgeScoring::Json, 10.0), (JudgeScoring::Logprobs, 9.0)] {
        let settings = JudgeRewardSettings { scoring, ..JudgeRewardSettings::default() };
        assert_eq!(settings.max_score(), most);
        assert!(Judge::new(settings).is_ok());
    }
}

#[test]
fn wrong_settings_are_refused_by_name() {
    let base = JudgeRewardSettings::default;
    for (settings, named) in [
        (JudgeRewardSettings { url: "localhost:8000".into(), ..base() }, "url"),
        (JudgeRewardSettings { min: 3.0, max: Some(3.0), ..base() }, "min"),
        (JudgeRewardSettings { template: Some("{prompt}".into()), ..base() }, "{completion}"),
        (JudgeRewardSettings { template: Some("{completion} {reference}".into()), ..base() }, "reference"),
        (JudgeRewardSettings { scoring: JudgeScoring::Pairwise, ..base() }, "reference"),
        (JudgeRewardSettings { scoring: JudgeScoring::Logprobs, max: Some(10.0), ..base() }, "0 to 9"),
        (JudgeRewardSettings { answers: [("yes".to_owned(), 1.0)].into(), ..base() }, "logprobs"),
        (JudgeRewardSettings { scoring: JudgeScoring::Logprobs, answers: [("yes".to_owned(), 1.0)].into(), ..base() }, "differ"),
    ] {
        let error = Judge::new(settings).err().unwrap().to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
}
