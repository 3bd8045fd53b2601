use super::server::{COMMIT, HubTestServer};
use super::*;
use std::time::Duration;

const TOKENIZER: &[u8] = b"{\"model\": {}}";

/// Hub with a model and datasets, and its own cache.
struct HubFixture {
    server: HubTestServer,
    cache: tempfile::TempDir,
    weights: Vec<u8>,
}

impl HubFixture {
    fn new() -> Self {
        let (server, cache) = (HubTestServer::new(), tempfile::tempdir().unwrap());
        let weights: Vec<u8> = (0..300_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        server.hold(
            "models/Qwen/Tiny@main",
            &[
                ("config.json", b"{}"),
                ("model.safetensors", &weights),
                ("pytorch_model.bin", &weights),
                ("tokenizer.json", TOKENIZER),
                ("tokenizer_config.json", b"{\"chat_template\": null}"),
                ("README.md", b"# Tiny"),
            ],
        );
        server.hold(
            "datasets/trl-lib/tldr@main",
            &[
                ("README.md", b"# TL;DR"),
                ("data/test-00000-of-00001.parquet", b"PAR1 test"),
                ("data/train-00000-of-00002.parquet", b"PAR1 first"),
                ("data/train-00001-of-00002.parquet", b"PAR1 second"),
            ],
        );
        Self { server, cache, weights }
    }

    fn hub(&self, change: impl FnOnce(&mut HubSettings)) -> Hub {
        let mut settings = HubSettings {
            endpoint: self.server.endpoint.clone(),
            cache: self.cache.path().to_owned(),
            redirects: self.server.elsewhere.clone(),
            token: None,
            offline: false,
            retry_delay: Duration::ZERO,
            timeouts: HubTimeouts::default(),
        };
        change(&mut settings);
        Hub::new(settings)
    }

    fn plain(&self) -> Hub {
        self.hub(|_| {})
    }

    fn offline(&self) -> Hub {
        self.hub(|settings| settings.offline = true)
    }

    fn in_cache(&self, path: &str) -> PathBuf {
        self.cache.path().join(path)
    }
}

/// Returns an address at which no server listens.
fn nobody() -> String {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", taken.local_addr().unwrap())
}

fn fetched(asked: &[server::HubTestRequest]) -> Vec<&str> {
    let name = |a: &'_ server::HubTestRequest| a.method == "GET" && a.path.contains("/contents/");
    asked.iter().filter(|a| name(a)).map(|a| a.path.as_str()).collect()
}

#[test]
fn a_model_comes_once_and_lies_as_the_hubs_own_libraries_lay_it() {
    let place = HubFixture::new();
    let model = place.plain().model("Qwen/Tiny").unwrap();
    let folder = place.in_cache(&format!("models--Qwen--Tiny/snapshots/{COMMIT}"));
    assert_eq!((&model.name, &model.folder), (&format!("Qwen/Tiny@{COMMIT}"), &folder));
    let mut names: Vec<_> = folder.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]);
    assert!(std::fs::read(folder.join("model.safetensors")).unwrap() == place.weights);
    assert_eq!(std::fs::read(folder.join("tokenizer.json")).unwrap(), TOKENIZER);
    assert_eq!(std::fs::read_to_string(place.in_cache("models--Qwen--Tiny/refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    {
        let link = std::fs::read_link(folder.join("model.safetensors")).unwrap();
        let hash = link.strip_prefix("../../blobs").unwrap().to_str().unwrap();
        assert!(hash.len() == 64 && place.in_cache("models--Qwen--Tiny/blobs").join(hash).is_file(), "{hash}");
    }
    place.server.asked();

    assert_eq!(place.plain().model("Qwen/Tiny").unwrap(), model);
    let again: Vec<_> = place.server.asked().into_iter().map(|a| a.path).collect();
    assert_eq!(again, ["/api/models/Qwen/Tiny/revision/main"]);
    for name in ["Qwen/Tiny", &model.name] {
        assert_eq!(place.offline().model(name).unwrap(), model);
    }
    assert!(place.server.asked().is_empty());
}

#[test]
fn of_a_chat_template_only_its_files_come_and_the_model_later() {
    let place = HubFixture::new();
    let template = place.plain().template("Qwen/Tiny").unwrap();
    let commit = format!("Qwen/Tiny@{COMMIT}");
    assert_eq!((&template.name, template.files.len()), (&commit, 1));
    let asked: Vec<String> = place.server.asked().into_iter().map(|a| a.path).filter(|path| !path.starts_with("/api/")).collect();
    assert!(!asked.is_empty() && asked.iter().all(|path| path.ends_with("/tokenizer_config.json")), "{asked:?}");
    assert_eq!(place.offline().template(&commit).unwrap(), template);
    // What the cache holds of the branch is not a model.
    assert!(matches!(place.offline().model("Qwen/Tiny"), Err(Error::Unreachable { .. })));
    assert_eq!(place.plain().model("Qwen/Tiny").unwrap().files.len(), 4);
    place.server.hold("models/only/weights@main", &[("config.json", b"{}"), ("model.safetensors", b"x")]);
    let said = place.plain().template("only/weights").unwrap_err().to_string();
    assert!(said.contains("has no tokenizer_config.json and no chat_template.jinja; it has config.json"), "{said}");
    assert!(!looks_like_name("templates/mine.jinja"));
}

#[test]
fn of_a_configuration_nothing_else_comes() {
    let place = HubFixture::new();
    let config = place.plain().model_config("Qwen/Tiny").unwrap();
    assert_eq!(std::fs::read(config.folder.join("config.json")).unwrap(), b"{}");
    let asked: Vec<String> = place.server.asked().into_iter().map(|a| a.path).filter(|path| !path.starts_with("/api/")).collect();
    assert!(!asked.is_empty() && asked.iter().all(|path| path.ends_with("/config.json")), "{asked:?}");
    assert_eq!(place.offline().model_config("Qwen/Tiny").unwrap(), config);
    assert!(matches!(place.offline().model("Qwen/Tiny"), Err(Error::Unreachable { .. })));
    place.server.hold("models/only/weights@main", &[("model.safetensors", b"x")]);
    let said = place.plain().model_config("only/weights").unwrap_err().to_string();
    assert!(said.contains("has no config.json; it has model.safetensors"), "{said}");
}

#[test]
fn special_tokens_and_the_template_for_tools_come_too() {
    let place = HubFixture::new();
    let tool_use = "additional_chat_templates/tool_use.jinja";
    let files: [(&str, &[u8]); 8] = [
        ("config.json", b"{}"),
        ("tokenizer.json", TOKENIZER),
        ("model.safetensors", b"weights"),
        ("tokenizer_config.json", b"{}"),
        ("special_tokens_map.json", b"{\"bos_token\": \"<s>\"}"),
        ("added_tokens.json", b"{}"),
        (tool_use, b"tools"),
        ("additional_chat_templates/other.jinja", b"other"),
    ];
    place.server.hold("models/named@main", &files);
    let template = place.plain().template("named").unwrap();
    assert_eq!(template.files.len(), 3, "{:?}", template.files);
    let model = place.plain().model("named").unwrap();
    assert_eq!(model.files.len(), 7, "{:?}", model.files);
    let read = |file: &str| std::fs::read_to_string(model.folder.join(file)).unwrap();
    assert_eq!((read("special_tokens_map.json").as_str(), read(tool_use).as_str()), ("{\"bos_token\": \"<s>\"}", "tools"));
    assert_eq!(place.offline().model("named").unwrap(), model);
}

#[test]
fn shards_come_by_their_index_and_not_what_else_is_there() {
    let place = HubFixture::new();
    let index = br#"{"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}"#;
    let mut files: Vec<(&str, &[u8])> = vec![
        ("config.json", b"{}"),
        ("tokenizer.json", TOKENIZER),
        ("model.safetensors.index.json", index),
        ("model-1-of-2.safetensors", b"one"),
        ("model-2-of-2.safetensors", b"two"),
        ("other.safetensors", b"other"),
        ("model.gguf", b"other"),
    ];
    place.server.hold("models/old@v1.0", &files);
    let model = place.plain().model("old@v1.0").unwrap();
    assert_eq!(model.files.len(), 5, "{:?}", model.files);
    assert_eq!(std::fs::read_to_string(place.in_cache("models--old/refs/v1.0")).unwrap(), COMMIT);
    assert_eq!(place.offline().model("old@v1.0").unwrap(), model);
    files.remove(3);
    place.server.hold("models/less@main", &files);
    let error = place.plain().model("less").unwrap_err().to_string();
    assert!(error.starts_with("less: has no model-1-of-2.safetensors"), "{error}");
}

#[test]
fn a_models_commit_or_name_may_have_changed() {
    let place = HubFixture::new();
    let files = place.server.state().repos["models/Qwen/Tiny@main"].clone();
    place
        .server
        .state()
        .repos
        .extend([("models/old/tiny@main".to_owned(), files.clone()), ("models/new/tiny@main".to_owned(), files)]);
    let model = place.plain().model("old/tiny").unwrap();
    assert!(std::fs::read(model.folder.join("model.safetensors")).unwrap() == place.weights);
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let place = HubFixture::new();
    place.server.state().token = Some("hf_secret".into());
    let with = |token: &str| place.hub(|settings| settings.token = Some(token.into())).model("Qwen/Tiny");
    with("hf_secret").unwrap();
    for asked in place.server.asked() {
        let elsewhere = asked.path.starts_with("/contents/");
        assert_eq!(asked.token.is_none(), elsewhere, "{asked:?}");
    }
    let wrong = place.hub(|s| s.token = Some("hf_other".into())).model("Qwen/Large").unwrap_err();
    assert!(matches!(&wrong, Error::Denied { .. }), "{wrong}");
    assert!(wrong.to_string().contains("rejects the token") && !wrong.to_string().contains("hf_other"), "{wrong}");
    let none = place.plain().model("Qwen/Large").unwrap_err().to_string();
    assert!(none.contains("HF_TOKEN") && none.contains(&place.server.endpoint) && none.contains("Qwen/Large"), "{none}");
    let gated = place.plain().model("some/gated").unwrap_err();
    assert!(matches!(&gated, Error::Denied { .. }), "{gated}");
    assert!(gated.to_string().contains("HF_TOKEN") && gated.to_string().contains("/some/gated"), "{gated}");
}

#[test]
fn a_redirect_to_what_only_this_machine_can_reach_is_not_followed() {
    let place = HubFixture::new();
    let refused = |name: &str, part: &str| {
        let error = place.hub(|settings| settings.redirects.clear()).model(name).unwrap_err();
        assert!(matches!(&error, Error::Denied { .. }) && error.is_mistake(), "{error}");
        assert!(error.to_string().contains(part) && error.to_string().contains("RLHOST_HUB_HOSTS="), "{error}");
    };
    // The large files are on another port of this machine.
    refused("Qwen/Tiny", &format!("redirects to {}, which is another server and not encrypted", place.server.elsewhere));
    assert_eq!(fetched(&place.server.asked()), [""; 0]);
    let port = place.server.elsewhere.rsplit(':').next().unwrap().to_owned();
    for (to, part) in [
        (format!("https://127.0.0.1:{port}"), "which has no public address"),
        (format!("https://localhost:{port}"), "which has no public address"),
        (format!("https://[::1]:{port}"), "which has no public address"),
        (format!("https://127.1:{port}"), "which has no public address"),
        ("https://169.254.169.254".to_owned(), "which has no public address"),
        ("http://169.254.169.254".to_owned(), "not encrypted"),
        ("https://10.0.0.1".to_owned(), "which has no public address"),
    ] {
        place.server.state().redirect = Some(to);
        refused("Qwen/Tiny", part);
    }
    assert_eq!(fetched(&place.server.asked()), [""; 0]);
    // The granted server must be the one in the redirect.
    let other = place.hub(|settings| settings.redirects = "http://127.0.0.1:1".to_owned());
    assert!(matches!(other.model("Qwen/Tiny").unwrap_err(), Error::Denied { .. }));
    place.server.state().redirect = None;
    let granted = place.hub(|settings| settings.redirects = format!("cdn.example, {}/ ", settings.redirects));
    assert!(granted.model("Qwen/Tiny").is_ok());
    let wrong = place.hub(|settings| settings.redirects = "a b".to_owned()).model("other/name").unwrap_err().to_string();
    assert!(wrong.contains("RLHOST_HUB_HOSTS: hosts: \"a b\""), "{wrong}");
}

#[test]
fn what_is_not_there_is_named_with_the_place_and_what_may_help() {
    let place = HubFixture::new();
    place
        .server
        .hold("models/only/torch@main", &[("config.json", b"{}"), ("tokenizer.json", b"{}"), ("pytorch_model.bin", b"x")]);
    place.server.hold("models/only/weights@main", &[("config.json", b"{}"), ("model.safetensors", b"x")]);
    let said = |name: &str| place.plain().model(name).unwrap_err().to_string();
    let missing = said("Qwen/Qwen9");
    assert!(missing.starts_with("Qwen/Qwen9: there is no such path, and http://127.0.0.1"), "{missing}");
    assert!(missing.contains("no model of this name (404)") && missing.contains("spelling"), "{missing}");
    assert!(said("Qwen/Tiny@v9").contains("no revision \"v9\""), "{}", said("Qwen/Tiny@v9"));
    assert!(said("only/torch").contains("has no model.safetensors") && said("only/torch").contains("pytorch_model.bin"));
    assert!(said("only/weights").contains("has no tokenizer.json"));
    assert!(said("a/b/c").contains("OWNER/NAME"));
    let offline = place.offline().model("Qwen/Tiny").unwrap_err().to_string();
    assert!(offline.contains("HF_HUB_OFFLINE") && offline.contains(place.cache.path().to_str().unwrap()), "{offline}");
    for endpoint in [nobody(), "nonsense".into(), "http://".into(), "gopher://x".into()] {
        let error = place.hub(|s| s.endpoint.clone_from(&endpoint)).model("Qwen/Tiny").unwrap_err();
        assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
        assert!(
            error.to_string().starts_with(&format!("Qwen/Tiny: there is no such path, and {endpoint} does not answer (")),
            "{error}"
        );
    }
    // The server responds, but is not a hub.
    place.server.hold("models/a/b@main", &[("api", b"{\"all\": \"well\"}")]);
    let foreign = place.hub(|s| s.endpoint.push_str("/a/b/resolve/main")).model("Qwen/Tiny").unwrap_err().to_string();
    assert!(foreign.starts_with("Qwen/Tiny: ") && !foreign.contains('\n'), "{foreign}");
}

#[test]
fn without_a_network_the_cache_serves() {
    let place = HubFixture::new();
    let model = place.plain().model("Qwen/Tiny").unwrap();
    let away = |name: &str| place.hub(|s| s.endpoint = nobody()).model(name);
    assert_eq!(away("Qwen/Tiny").unwrap(), model);
    // A model without its weights is not a model.
    let blob = model.folder.join("model.safetensors").canonicalize().unwrap();
    std::fs::remove_file(blob).unwrap();
    assert!(matches!(away("Qwen/Tiny").unwrap_err(), Error::Unreachable { .. }));
    assert!(matches!(place.offline().model(&model.name).unwrap_err(), Error::Unreachable { .. }));
    assert_eq!(place.plain().model("Qwen/Tiny").unwrap(), model);
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_stood() {
    let place = HubFixture::new();
    place.server.state().cut = Some((100_000, 2));
    let model = place.plain().model("Qwen/Tiny").unwrap();
    assert!(std::fs::read(model.folder.join("model.safetensors")).unwrap() == place.weights);
    let asked = place.server.asked();
    let from: Vec<_> = asked.iter().filter(|a| a.path.starts_with("/contents/")).map(|a| a.from).collect();
    assert_eq!(from, [None, Some(100_000), Some(200_000)]);
    let busy = HubFixture::new();
    busy.server.state().busy = 3;
    assert!(busy.plain().model("Qwen/Tiny").is_ok());
    busy.server
        .hold("models/other/tiny@main", &[("config.json", b"{ }"), ("tokenizer.json", b"{ }"), ("model.safetensors", b"x")]);
    busy.server.state().busy = usize::MAX;
    let error = busy.plain().model("other/tiny").unwrap_err().to_string();
    assert!(error.contains("can't answer now (503"), "{error}");
}

#[test]
fn a_download_that_gives_up_is_gone_on_with_by_the_next() {
    let place = HubFixture::new();
    place.server.state().cut = Some((0, usize::MAX));
    let error = place.plain().model("Qwen/Tiny").unwrap_err();
    assert!(matches!(&error, Error::Broken { .. }) && !error.is_mistake(), "{error}");
    assert!(error.to_string().contains("run the same command again to resume there"), "{error}");
    let offline = place.offline().model("Qwen/Tiny").unwrap_err();
    assert!(matches!(offline, Error::Unreachable { .. }), "{offline}");

    // Part of the weights is left from another run, or more than the file has, or the server ignores ranges.
    place.server.state().cut = None;
    let first = place.plain().model("Qwen/Tiny").unwrap();
    let blob = first.folder.join("model.safetensors").canonicalize().unwrap();
    let part = blob.with_extension("incomplete");
    for (left, rangeless) in [(1234, false), (300_000, false), (400_000, false), (1234, true)] {
        std::fs::remove_file(&blob).unwrap();
        let bytes: Vec<u8> = place.weights.iter().copied().chain(std::iter::repeat(7)).take(left).collect();
        std::fs::write(&part, bytes).unwrap();
        place.server.state().rangeless = rangeless;
        let model = place.plain().model("Qwen/Tiny").unwrap();
        assert!(std::fs::read(model.folder.join("model.safetensors")).unwrap() == place.weights, "{left}");
        assert!(!part.exists());
    }
}

#[test]
fn a_file_that_comes_damaged_is_not_kept() {
    let place = HubFixture::new();
    place.server.state().damaged = true;
    let error = place.plain().model("Qwen/Tiny").unwrap_err().to_string();
    assert!(error.contains("model.safetensors") && error.contains("SHA-256 does not match"), "{error}");
    let blobs = place.in_cache("models--Qwen--Tiny/blobs");
    let large = blobs.read_dir().unwrap().map(|e| e.unwrap().file_name()).filter(|name| name.len() > 40).count();
    assert_eq!(large, 0);
    place.server.state().damaged = false;
    assert!(place.plain().model("Qwen/Tiny").is_ok());
}

#[test]
fn two_at_once_fetch_once() {
    let place = HubFixture::new();
    let models = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| place.plain().model("Qwen/Tiny").unwrap())).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(models.iter().all(|m| *m == models[0]));
    assert_eq!(fetched(&place.server.asked()).len(), 1);
}

#[test]
fn a_datasets_split_comes_in_the_order_of_its_shards() {
    let place = HubFixture::new();
    let dataset = place.plain().dataset("trl-lib/tldr", "train").unwrap();
    let texts: Vec<String> = dataset.files.iter().map(|f| std::fs::read_to_string(f).unwrap()).collect();
    assert_eq!(texts, ["PAR1 first", "PAR1 second"]);
    assert!(dataset.files[0].ends_with(format!("datasets--trl-lib--tldr/snapshots/{COMMIT}/data/train-00000-of-00002.parquet")));
    assert_eq!(fetched(&place.server.asked()).len(), 2);
    assert_eq!(place.offline().dataset("trl-lib/tldr", "train").unwrap(), dataset);
    assert_eq!(place.offline().dataset(&dataset.name, "train").unwrap(), dataset);
    assert!(place.offline().dataset("trl-lib/tldr", "test").is_err());
    let error = place.plain().dataset("trl-lib/tldr", "validation").unwrap_err().to_string();
    assert_eq!(error, "trl-lib/tldr: has no split \"validation\"; it has test, train");
    // Without one shard, it is no longer the dataset.
    std::fs::remove_file(&dataset.files[1]).unwrap();
    assert!(matches!(place.offline().dataset("trl-lib/tldr", "train").unwrap_err(), Error::Unreachable { .. }));
}

#[test]
fn a_card_on_the_hub_says_which_files_come() {
    let place = HubFixture::new();
    let card = b"---\nconfigs:\n- config_name: en\n  default: true\n  data_files:\n  - {split: train, path: 'a*'}\n  - {split: test, path: b.jsonl}\n- config_name: de\n  data_files: b.jsonl\n---\n";
    let files: &[(&str, &[u8])] =
        &[("README.md", card), ("a1.jsonl", b"1"), ("a2.jsonl", b"2"), ("b.jsonl", b"3"), ("c.jsonl", b"4")];
    place.server.hold("datasets/a/carded@main", files);
    let names = |dataset: &HubSnapshot| -> Vec<String> {
        dataset.files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    let train = place.plain().dataset("a/carded", "train").unwrap();
    assert_eq!(names(&train), ["a1.jsonl", "a2.jsonl"]);
    assert_eq!(place.offline().dataset("a/carded", "train").unwrap(), train);
    // The test rows are not in the cache.
    assert!(place.offline().dataset("a/carded", "test").is_err());
    assert_eq!(names(&place.plain().dataset("a/carded/de", "train").unwrap()), ["b.jsonl"]);
    assert!(place.plain().dataset("a/carded/fr", "train").unwrap_err().to_string().contains("lists en, de"));
    // The card's default config also applies to tables, which come from the hub's conversion.
    let card = b"---\nconfigs:\n- {config_name: main, default: true, data_files: x.csv}\n- {config_name: other, data_files: y.csv}\n---\n";
    place.server.hold("datasets/a/tables@main", &[("README.md", card), ("x.csv", b"a"), ("y.csv", b"a")]);
    let tables: &[(&str, &[u8])] = &[("main/train/0000.parquet", b"PAR1 m"), ("other/train/0000.parquet", b"PAR1 o")];
    place.server.hold("datasets/a/tables@refs/convert/parquet", tables);
    let main = place.plain().dataset("a/tables", "train").unwrap();
    assert!(main.files.len() == 1 && main.files[0].ends_with("main/train/0000.parquet"), "{main:?}");
    assert_eq!(place.plain().dataset(&main.name, "train").unwrap(), main);
}

#[test]
fn of_a_cards_splits_only_the_wanted_one_need_be_in_the_cache() {
    let place = HubFixture::new();
    let card = b"---\nconfigs:\n- config_name: en\n  data_files:\n  - {split: train, path: en/a.jsonl}\n  - {split: test, path: en/b.jsonl}\n- config_name: de\n  data_files:\n  - {split: train, path: de/a.jsonl}\n  - {split: test, path: de/b.jsonl}\n---\n";
    let files: &[(&str, &[u8])] =
        &[("README.md", card), ("de/a.jsonl", b"1"), ("de/b.jsonl", b"2"), ("en/a.jsonl", b"3"), ("en/b.jsonl", b"4")];
    place.server.hold("datasets/a/named@main", files);
    let online = place.plain().dataset("a/named/de", "train").unwrap();
    assert!(online.files.len() == 1 && online.files[0].ends_with("de/a.jsonl"), "{online:?}");
    assert_eq!(place.offline().dataset("a/named/de", "train").unwrap(), online);
    for hub in [place.plain(), place.offline()] {
        assert_eq!(hub.dataset(&online.name, "train").unwrap(), online);
    }
    for missing in [("a/named/de", "test"), ("a/named/en", "train")] {
        assert!(matches!(place.offline().dataset(missing.0, missing.1).unwrap_err(), Error::Unreachable { .. }));
    }
}

#[test]
fn a_listed_subset_comes_before_a_folder_of_its_name() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    for folder in ["en", "de", "fr"] {
        std::fs::create_dir(at(folder)).unwrap();
    }
    for file in ["en/a.jsonl", "de/a.jsonl", "de/b.jsonl", "fr/a.jsonl"] {
        std::fs::write(at(file), "{}").unwrap();
    }
    let given = |name: &str| local_subset(at(name).to_str().unwrap());
    assert_eq!(given("de"), None);
    let card = "configs:\n- config_name: de\n  data_files:\n  - {split: train, path: de/a.jsonl}\n  - {split: test, path: de/b.jsonl}\n- config_name: pt\n  data_files: en/a.jsonl\n";
    for (file, text) in [("README.md", format!("---\n{card}---\n")), (".huggingface.yaml", card.to_owned())] {
        std::fs::write(at(file), text).unwrap();
        let (folder, subset) = given("de").unwrap();
        assert_eq!((folder.as_path(), subset.as_str()), (place.path(), "de"));
        let train = local_split(&folder, Some(&subset), ("train", false), |_| false).unwrap().unwrap();
        assert_eq!(train.files, [at("de/a.jsonl")]);
        assert_eq!(given("pt").unwrap().1, "pt");
        // A folder that the card does not list is an ordinary folder.
        assert_eq!((given("fr"), given("de/a.jsonl")), (None, None));
        std::fs::remove_file(at(file)).unwrap();
    }
}

#[test]
fn where_nothing_can_be_read_the_hubs_conversion_is_taken() {
    let place = HubFixture::new();
    place.server.hold("datasets/a/csv@main", &[("data.csv", b"a,b"), ("README.md", b"#")]);
    let error = place.plain().dataset("a/csv", "train").unwrap_err().to_string();
    assert!(error.contains("a/csv: has no .parquet") && error.contains("data.csv"), "{error}");
    let files: &[(&str, &[u8])] = &[("default/train/0000.parquet", b"PAR1"), ("default/test/0000.parquet", b"PAR1 t")];
    place.server.hold("datasets/a/csv@refs/convert/parquet", files);
    let dataset = place.plain().dataset("a/csv", "train").unwrap();
    let folder = place.in_cache(&format!("datasets--a--csv/snapshots/{}", server::CONVERTED));
    assert_eq!(dataset.files, [folder.join("default/train/0000.parquet")]);
    assert_eq!(place.offline().dataset("a/csv", "train").unwrap(), dataset);
    assert_eq!(place.plain().dataset(&dataset.name, "train").unwrap(), dataset);
    let error = place.plain().dataset("a/csv", "dev").unwrap_err().to_string();
    assert_eq!(error, "a/csv: has no split \"dev\"; it has test, train");
}

#[test]
fn no_more_comes_than_was_said_and_no_more_is_said_than_fits() {
    let place = HubFixture::new();
    place.server.state().swelled = 1 << 20;
    let error = place.plain().model("Qwen/Tiny").unwrap_err();
    assert!(matches!(&error, Error::Broken { .. }), "{error}");
    assert!(error.to_string().contains("/Qwen/Tiny sends more than the 292.97 KiB that the file has"), "{error}");
    let blobs = place.in_cache("models--Qwen--Tiny/blobs").read_dir().unwrap();
    assert!(blobs.map(|e| e.unwrap().metadata().unwrap().len()).all(|size| size < 1000));
    for size in [u64::MAX.to_string(), (MOST + 1).to_string()] {
        place.server.state().size = Some(size);
        let error = place.plain().model("Qwen/Tiny").unwrap_err().to_string();
        assert!(error.contains("model.safetensors is ") && error.contains("at most 1.00 TiB"), "{error}");
    }
    let many: Vec<String> = (0..100_001).map(|i| format!("{i}")).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), &b""[..])).collect();
    place.server.hold("models/very/many@main", &many);
    let error = place.plain().model("very/many").unwrap_err().to_string();
    assert!(error.contains("lists 100001 files; the maximum is 100000"), "{error}");
}

#[test]
fn nobody_waits_for_a_hub_that_sends_a_byte_now_and_then() {
    let place = HubFixture::new();
    let (answer, stretch) = (Duration::from_millis(300), Duration::from_millis(300));
    let hasty = || place.hub(|settings| settings.timeouts = HubTimeouts { answer, stretch, least: 1000 });
    // At fifty bytes a second, its listing takes many seconds and its weights hours.
    let begun = std::time::Instant::now();
    place.server.state().slow = Some("/api/");
    let error = hasty().model("Qwen/Tiny").unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("timeout"), "{error}");
    place.server.state().slow = Some("/contents/");
    let error = hasty().model("Qwen/Tiny").unwrap_err();
    assert!(matches!(&error, Error::Broken { .. }), "{error}");
    let expected = "sends a file too slowly, less than 1000 B in 300ms; the same command goes on from there";
    assert!(error.to_string().contains(expected), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    place.server.state().slow = None;
    assert!(hasty().model("Qwen/Tiny").is_ok());
}

#[cfg(unix)]
#[test]
fn the_cache_is_not_written_through_links_nor_read_in_circles() {
    use std::os::unix::fs::symlink;
    let place = HubFixture::new();
    let model = place.plain().model("Qwen/Tiny").unwrap();
    let blob = model.folder.join("model.safetensors").canonicalize().unwrap();
    symlink("..", model.folder.join("circle")).unwrap();
    assert_eq!(place.offline().model("Qwen/Tiny").unwrap(), model);
    std::fs::remove_file(&blob).unwrap();
    let elsewhere = place.in_cache("elsewhere");
    std::fs::write(&elsewhere, "kept").unwrap();
    symlink(&elsewhere, blob.with_extension("incomplete")).unwrap();
    let error = place.plain().model("Qwen/Tiny").unwrap_err().to_string();
    assert!(error.contains(".incomplete: it is not a regular file"), "{error}");
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"kept");
    // An invalid commit in `refs` is not followed.
    std::fs::write(place.in_cache("models--Qwen--Tiny/refs/main"), "../../..").unwrap();
    assert!(matches!(place.offline().model("Qwen/Tiny").unwrap_err(), Error::Unreachable { .. }));
}

#[test]
fn names_from_outside_stay_inside() {
    let place = HubFixture::new();
    let inside: &[&str] = &["a", "a/b.json", "a b"];
    let long = "a/".repeat(300);
    let outside: &[&str] =
        &["", "/etc/passwd", "../x", "a/../../x", "./a", "a\\..\\b", "a//b", "a/", "a\x1b[2J", "a\u{202e}b", &long];
    assert!(inside.iter().all(|name| cache::is_inside(name)) && !outside.iter().any(|name| cache::is_inside(name)));
    assert!(!cache::is_hash("../../../x") && !cache::is_hash("") && cache::is_hash(COMMIT));
    place.server.hold("datasets/evil/one@main", &[("../../train.jsonl", b"{}")]);
    let error = place.plain().dataset("evil/one", "train").unwrap_err().to_string();
    assert!(error.contains("has no .parquet"), "{error}");
}
