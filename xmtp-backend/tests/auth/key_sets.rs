//! Keys that come from an address: what is loaded, what is refused, what is published.

use serde_json::{Value, json};
use xmtp_backend::StartError;
use xmtp_proto::backend::v1::auth_configuration::SigningKey;

use super::*;
use crate::key_server::{Answer, KeyServer, entries, key_set};
use crate::log::Log;
use crate::signer::ALGORITHMS;

/// The most that an answer may have, in bytes.
const KEY_SET_BYTES: usize = 256 * 1024;

fn token_of(signer: &Signer, clock: &TestClock) -> String {
    signer.sign(&json!({ "exp": clock.seconds() + 86_400 }))
}

fn key(kid: &str, alg: &str) -> SigningKey {
    SigningKey {
        kid: kid.into(),
        alg: alg.into(),
    }
}

/// Starts a server whose keys can not be loaded, and returns what it says and the clock.
async fn fails(answer: Answer) -> (String, Arc<TestClock>, usize) {
    let clock = TestClock::new();
    let keys = KeyServer::start(answer).await;
    let starting = Backend::start(config(section(fetched(&keys.url)), &clock));
    // Three attempts are two pauses, and as many times of a fetch that does not end.
    let passing = async {
        for pause in 1..=2 {
            clock
                .begun(pause, |wait| wait == Duration::from_secs(1))
                .await;
            clock.advance(Duration::from_secs(1));
        }
        std::future::pending::<()>().await;
    };
    let started = tokio::select! {
        started = tokio::time::timeout(PATIENCE, starting) => started.expect("it ends in time"),
        () = passing => unreachable!(),
    };
    let error = started.expect_err("it does not start");
    assert!(matches!(error, StartError::Keys(_)), "{error:?}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("127.0.0.1"), "{shown}");
    (error.to_string(), clock, keys.requests())
}

/// covers: CFG-027, CFG-092
#[tokio::test]
async fn each_algorithm_is_taken_from_a_key_set() {
    let clock = TestClock::new();
    let signers: Vec<_> = ALGORITHMS
        .iter()
        .map(|alg| Signer::new(alg.name(), *alg))
        .collect();
    let keys = KeyServer::start(key_set(&signers.iter().collect::<Vec<_>>())).await;
    let peer = serving(section(fetched(&keys.url)), &clock).await;
    for signer in &signers {
        let token = token_of(signer, &clock);
        query(&peer, &token)
            .await
            .unwrap_or_else(|status| panic!("{} {status}", signer.kid));
    }
    let told = published(&peer).await;
    assert!(told.enabled);
    let all: Vec<_> = ALGORITHMS
        .iter()
        .map(|alg| key(alg.name(), alg.name()))
        .collect();
    assert_eq!(told.keys, all);
    assert_eq!(keys.requests(), 1, "no request fetches keys");
}

/// covers: CFG-092
#[tokio::test]
async fn a_first_load_is_tried_three_times_a_second_apart() {
    let (error, clock, requests) = fails(Answer::Status(500)).await;
    assert!(
        error.starts_with("auth.jwks_url: ") && error.contains("500"),
        "{error}"
    );
    assert_eq!(requests, 3);
    let second = Duration::from_secs(1);
    assert_eq!(
        clock
            .waits()
            .into_iter()
            .filter(|wait| *wait == second)
            .count(),
        2
    );

    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let keys = KeyServer::start(Answer::Status(503)).await;
    let starting = Backend::start(config(section(fetched(&keys.url)), &clock));
    let passing = async {
        for pause in 1..=2 {
            clock.begun(pause, |wait| wait == second).await;
            if pause == 2 {
                keys.answer(key_set(&[&signer]));
            }
            clock.advance(second);
        }
    };
    let (running, ()) = tokio::join!(starting, passing);
    running.expect("the third attempt succeeds").stop().await;
    assert_eq!(keys.requests(), 3);
}

/// covers: CFG-092
#[tokio::test]
async fn a_redirect_is_not_followed() {
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let other = KeyServer::start(key_set(&[&signer])).await;
    let (error, ..) = fails(Answer::Redirect(other.url.clone())).await;
    assert!(error.contains("302"), "{error}");
    assert_eq!(other.requests(), 0);
}

/// covers: CFG-092
#[tokio::test]
async fn an_answer_has_a_greatest_size() {
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let Answer::Body(body) = key_set(&[&signer]) else {
        unreachable!()
    };
    let padded = |bytes: usize| Answer::Body(format!("{body}{}", " ".repeat(bytes - body.len())));
    let clock = TestClock::new();
    let keys = KeyServer::start(padded(KEY_SET_BYTES)).await;
    serving(section(fetched(&keys.url)), &clock).await;
    for answer in [
        padded(KEY_SET_BYTES + 1),
        Answer::Endless(64 * KEY_SET_BYTES),
    ] {
        let (error, ..) = fails(answer).await;
        assert!(error.contains("larger than 256 KiB"), "{error}");
    }
}

/// covers: CFG-092
#[tokio::test]
async fn an_answer_may_take_ten_seconds() {
    for answer in [Answer::Silence, Answer::Half] {
        let clock = TestClock::new();
        let keys = KeyServer::start(answer).await;
        let starting = Backend::start(config(section(fetched(&keys.url)), &clock));
        let passing = async {
            for attempt in 1..=3 {
                keys.asked(attempt).await;
                clock
                    .begun(attempt, |wait| wait == Duration::from_secs(10))
                    .await;
                clock.advance(Duration::from_secs(10));
                if attempt < 3 {
                    clock
                        .begun(attempt, |wait| wait == Duration::from_secs(1))
                        .await;
                    clock.advance(Duration::from_secs(1));
                }
            }
        };
        let (started, ()) = tokio::join!(starting, passing);
        let error = started.expect_err("it does not start").to_string();
        assert!(error.contains("more than 10 seconds"), "{error}");
    }
}

/// covers: CFG-092
#[tokio::test]
async fn what_is_no_key_set_is_refused() {
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let with = |name: &str, value: Value| {
        let mut entry = signer.jwk();
        entry[name] = value;
        entry
    };
    let many = |count: usize| {
        let entry = |number: usize| with("kid", json!(number.to_string()));
        entries((0..count).map(entry).collect())
    };
    for (answer, problem) in [
        (Answer::Body("keys".into()), "no JSON Web Key Set"),
        (Answer::Body("[]".into()), "no JSON Web Key Set"),
        (Answer::Body("{\"keys\":{}}".into()), "no JSON Web Key Set"),
        (entries(vec![]), "no key that can be used"),
        (
            entries(vec![with("alg", json!(null))]),
            "no key that can be used",
        ),
        (
            entries(vec![with("alg", json!("ES256"))]),
            "no key that can be used",
        ),
        (
            entries(vec![with("use", json!("enc"))]),
            "no key that can be used",
        ),
        (
            entries(vec![with("key_ops", json!(["sign"]))]),
            "no key that can be used",
        ),
        (
            entries(vec![with("x", json!("AAAA"))]),
            "no key that can be used",
        ),
        (
            entries(vec![with("d", json!("AAAA"))]),
            "no key that can be used",
        ),
        (
            entries(vec![
                json!(7),
                json!({"kty": "oct", "k": "AAAA", "alg": "HS256"}),
            ]),
            "no key that can be used",
        ),
        (
            entries(vec![signer.jwk(), signer.jwk()]),
            "same kid and alg",
        ),
        (many(65), "more than 64"),
    ] {
        let (error, ..) = fails(answer).await;
        assert!(error.contains(problem), "{problem}: {error}");
    }
    let keys = KeyServer::start(many(64)).await;
    let peer = serving(section(fetched(&keys.url)), &TestClock::new()).await;
    assert_eq!(published(&peer).await.keys.len(), 64);
}

/// covers: CFG-092
#[tokio::test]
async fn entries_that_can_not_be_used_are_passed_over() {
    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::Rs256);
    let nameless = Signer::new("b", SigningAlgorithm::EdDsa);
    let mut short = signer.jwk();
    short["kid"] = json!("short");
    short["n"] = json!("AQAB");
    let mut bare = nameless.jwk();
    bare.as_object_mut().expect("an entry").remove("kid");
    let strange = json!({ "kty": "unheard-of", "alg": "RS256", "kid": "x" });
    let keys = KeyServer::start(entries(vec![
        json!(null),
        strange,
        short,
        signer.jwk(),
        bare,
    ]))
    .await;
    let peer = serving(section(fetched(&keys.url)), &clock).await;
    query(&peer, &token_of(&signer, &clock))
        .await
        .expect("taken");
    assert_code(&peer, &token_of(&nameless, &clock), Code::Unauthenticated).await;
    let claims = json!({ "exp": clock.seconds() + 60 });
    let unnamed = nameless.sign_with(&json!({ "alg": "EdDSA" }), &claims);
    query(&peer, &unnamed)
        .await
        .expect("it is the only key of its kind");
    assert_eq!(
        published(&peer).await.keys,
        [key("a", "RS256"), key("", "EdDSA")]
    );
}

/// covers: CFG-004
#[tokio::test]
async fn switched_off_it_loads_no_keys() {
    let keys = KeyServer::start(Answer::Status(500)).await;
    let text = format!(
        "[server]\nidentifier = \"{IDENTIFIER}\"\nlisten = \"127.0.0.1:0\"\n\
         [database]\nurl = \"memory:\"\n\
         [auth]\nenabled = false\njwks_url = \"{}\"\n",
        keys.url
    );
    let mut config = Config::from_toml(&text).expect("a configuration");
    config.telemetry.metrics_listen = None;
    let peer = Peer::start(config).await;
    call(&peer, QUERY, None)
        .await
        .expect("no credential is needed");
    assert_eq!(published(&peer).await, AuthConfiguration::default());
    assert_eq!(keys.requests(), 0);
}

/// covers: CFG-092
#[tokio::test]
async fn no_log_tells_a_token_a_key_or_an_address() {
    let log = Log::default();
    let _guard = log.listen();
    let clock = TestClock::new();
    let signer = Signer::new("the-kid", SigningAlgorithm::EdDsa);
    let keys = KeyServer::start(key_set(&[&signer])).await;
    let secret = keys.url.replace("http://", "http://user:secret-password@");
    let mut auth = section(fetched(&format!("{secret}?secret-query")));
    auth.api_keys = BTreeMap::from([("monitor".into(), Secret::new(API_KEY))]);
    let peer = serving(auth, &clock).await;
    let good = token_of(&signer, &clock);
    let old = signer.sign(&json!({ "exp": 1, "sub": "somebody" }));
    query(&peer, &good).await.expect("taken");
    query(&peer, API_KEY).await.expect("taken");
    query(&peer, &old).await.expect_err("too old");
    keys.answer(Answer::Status(500));
    refreshed(&clock, 2).await;
    let text = log.text();
    assert!(text.contains("could not be refreshed"), "{text}");
    let x = signer.jwk()["x"].as_str().expect("a key").to_owned();
    for hidden in [
        &good,
        &old,
        API_KEY,
        "secret-password",
        "secret-query",
        &x,
        "somebody",
    ] {
        let own = |line: &&str| line.contains("xmtp_backend") && line.contains(hidden);
        assert_eq!(text.lines().find(own), None);
    }
}

/// covers: CFG-027, CFG-092
#[tokio::test]
async fn a_refresh_replaces_the_keys_and_not_what_is_told_of_them() {
    let clock = TestClock::new();
    let [old, new] = ["old", "new"].map(|kid| Signer::new(kid, SigningAlgorithm::EdDsa));
    let keys = KeyServer::start(key_set(&[&old])).await;
    let peer = serving(section(fetched(&keys.url)), &clock).await;
    query(&peer, &token_of(&old, &clock)).await.expect("taken");
    assert_code(&peer, &token_of(&new, &clock), Code::Unauthenticated).await;
    assert_eq!(
        keys.requests(),
        1,
        "a token with an unknown key fetches nothing"
    );

    keys.answer(key_set(&[&new]));
    refreshed(&clock, 2).await;
    query(&peer, &token_of(&new, &clock)).await.expect("taken");
    assert_code(&peer, &token_of(&old, &clock), Code::Unauthenticated).await;
    assert_eq!(published(&peer).await.keys, [key("old", "EdDSA")]);
}

/// covers: CFG-092
#[tokio::test]
async fn a_refresh_that_fails_keeps_the_keys() {
    let clock = TestClock::new();
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let keys = KeyServer::start(key_set(&[&signer])).await;
    let peer = serving(section(fetched(&keys.url)), &clock).await;
    let bad = [
        Answer::Status(500),
        Answer::Redirect(keys.url.clone()),
        Answer::Body("{}".into()),
        entries(vec![]),
    ];
    for (number, answer) in bad.into_iter().enumerate() {
        keys.answer(answer);
        refreshed(&clock, number + 2).await;
        assert_eq!(keys.requests(), number + 2);
        query(&peer, &token_of(&signer, &clock))
            .await
            .expect("the old keys stay");
    }
}

/// Lets the time of the next refresh come, and comes back when the one after it is waited for.
async fn refreshed(clock: &TestClock, count: usize) {
    clock.begun(count - 1, is_pause).await;
    clock.advance(Duration::from_secs(330));
    clock.begun(count, is_pause).await;
    let pauses: Vec<_> = clock
        .waits()
        .into_iter()
        .filter(|wait| is_pause(*wait))
        .collect();
    assert_eq!(pauses.len(), count, "{pauses:?}");
}

/// Reports whether a wait is the pause between two refreshes: up to a tenth more than asked for.
fn is_pause(wait: Duration) -> bool {
    (Duration::from_secs(300)..=Duration::from_secs(330)).contains(&wait)
}
