//! Why a token is not taken.

use serde_json::{Value, json};
use xmtp_proto::status::Details;

use super::*;
use crate::log::Log;
use crate::signer::{ALGORITHMS, encoded};

/// What a caller is told, by reason: the code, the stable reason and the sentence.
type Told = (Code, &'static str, &'static str);

const MISSING: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_MISSING",
    "a credential is needed, send it as authorization: Bearer",
);
const MALFORMED: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_MALFORMED",
    "the credential does not have the form of a bearer token",
);
const UNSUPPORTED_ALG: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_ALGORITHM",
    "the token is signed with an algorithm that is not accepted",
);
const UNTRUSTED: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_UNTRUSTED",
    "the token is not signed by a key of this server",
);
const EXPIRED: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_EXPIRED",
    "the token has expired, get a new one",
);
const NOT_YET_VALID: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_NOT_YET_VALID",
    "the token is not valid yet",
);
const AUDIENCE: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_AUDIENCE",
    "the token is not meant for this server",
);
const ISSUER: Told = (
    Code::Unauthenticated,
    "CREDENTIAL_ISSUER",
    "the token comes from an issuer that is not accepted",
);
const SCOPE: Told = (
    Code::PermissionDenied,
    "SCOPE_MISSING",
    "the token lacks a scope that this server requires",
);

/// A server that asks for everything, and the key that it trusts.
struct Strict {
    peer: Peer,
    signer: Signer,
    clock: Arc<TestClock>,
}

impl Strict {
    async fn start() -> Self {
        let clock = TestClock::new();
        let signer = Signer::new("a", SigningAlgorithm::Es256);
        let mut auth = section(inline(&[&signer]));
        auth.audiences = vec!["chat".into(), "other".into()];
        auth.issuers = vec!["https://one".into(), "https://two".into()];
        auth.required_scopes = vec!["read".into(), "write".into()];
        auth.api_keys = BTreeMap::from([
            ("monitor".into(), Secret::new(API_KEY)),
            ("second".into(), Secret::new("s".repeat(8192))),
        ]);
        let peer = serving(auth, &clock).await;
        Self {
            peer,
            signer,
            clock,
        }
    }

    /// Returns claims that are taken, with some of them replaced.
    fn claims(&self, change: &Value) -> Value {
        let mut claims = json!({
            "exp": self.clock.seconds() + 600,
            "nbf": self.clock.seconds(),
            "aud": "chat",
            "iss": "https://one",
            "scope": "read write",
            "sub": "somebody",
        });
        for (name, value) in change.as_object().expect("claims") {
            claims[name] = value.clone();
        }
        claims
    }

    fn token(&self, change: Value) -> String {
        self.signer.sign(&self.claims(&change))
    }

    fn headed(&self, header: Value) -> String {
        self.signer.sign_with(&header, &self.claims(&json!({})))
    }

    async fn rejects(&self, token: &str, told: Told) {
        self.rejects_header(Some(&format!("Bearer {token}")), told)
            .await;
    }

    async fn rejects_header(&self, header: Option<&str>, told: Told) {
        let status = call(&self.peer, QUERY, header)
            .await
            .expect_err("it is turned away");
        let reason = Details::decode(status.details()).reason;
        let found = (status.code(), reason.as_deref(), status.message());
        assert_eq!(found, (told.0, Some(told.1), told.2));
    }

    async fn takes(&self, token: &str) {
        query(&self.peer, token).await.expect("it is taken");
    }
}

/// covers: CFG-092
#[tokio::test]
async fn the_form_comes_first() {
    let strict = Strict::start().await;
    strict.rejects_header(None, MISSING).await;
    let good = strict.token(json!({}));
    strict.takes(&good).await;
    for header in [
        "Bearer",
        "Bearer ",
        "Basic abc",
        &good,
        &format!("Bearer  {good}"),
    ] {
        strict.rejects_header(Some(header), MALFORMED).await;
    }
    strict
        .rejects_header(Some(&format!("Bearer {good} {good}")), MALFORMED)
        .await;
    let claims = strict.claims(&json!({})).to_string();
    let raw = |header: &str, claims: &str| strict.signer.sign_raw(header, claims);
    let header = r#"{"alg":"ES256","kid":"a"}"#;
    strict.takes(&raw(header, &claims)).await;
    for token in [
        "abc".to_owned(),
        "a.b".to_owned(),
        "a.b.c.d".to_owned(),
        format!("{good}."),
        format!("{good}="),
        good.replace('.', ".."),
        raw("{", &claims),
        raw("[]", &claims),
        raw(r#"{"kid":"a"}"#, &claims),
        raw(r#"{"alg":7,"kid":"a"}"#, &claims),
        raw(r#"{"alg":"ES256","kid":7}"#, &claims),
        raw(r#"{"alg":"ES256","kid":"a","crit":["exp"]}"#, &claims),
        raw(
            r#"{"alg":"ES256","kid":"a","b64":false,"crit":["b64"]}"#,
            &claims,
        ),
        raw(header, "{"),
        raw(header, "[]"),
        raw(header, "7"),
    ] {
        strict.rejects(&token, MALFORMED).await;
    }
}

/// covers: CFG-092
#[tokio::test]
async fn a_token_has_a_longest_length() {
    let strict = Strict::start().await;
    // Four more letters of base64 for every three of the claim.
    let padded = |letters: usize| strict.token(json!({ "x": "a".repeat(letters) }));
    let room = 8192 - padded(0).len();
    let letters = room / 4 * 3;
    assert!(padded(letters).len() <= 8192 && padded(letters + 6).len() > 8192);
    strict.takes(&padded(letters)).await;
    strict.rejects(&padded(letters + 6), MALFORMED).await;
}

/// covers: CFG-092
#[tokio::test]
async fn only_known_algorithms_are_read() {
    let strict = Strict::start().await;
    for alg in ["none", "HS256", "PS256", "ES512", "es256", "ES256K", ""] {
        let token = strict.headed(json!({ "alg": alg, "kid": "a" }));
        strict.rejects(&token, UNSUPPORTED_ALG).await;
    }
    let claims = strict.claims(&json!({})).to_string();
    let unsigned = format!("{}.{}.", encoded(r#"{"alg":"none"}"#), encoded(&claims));
    strict.rejects(&unsigned, UNSUPPORTED_ALG).await;
}

/// covers: CFG-092
#[tokio::test]
async fn one_key_is_chosen_and_no_second_is_tried() {
    let clock = TestClock::new();
    let named = ["a", "b"].map(|kid| Signer::new(kid, SigningAlgorithm::Es256));
    let [a, b] = &named;
    let only = Signer::new("c", SigningAlgorithm::EdDsa);
    let strange = Signer::new("a", SigningAlgorithm::Es256);
    let peer = serving(section(inline(&[a, b, &only])), &clock).await;
    let strict = Strict {
        peer,
        signer: strange,
        clock: clock.clone(),
    };
    let claims = json!({ "exp": clock.seconds() + 60 });
    for signer in [a, b, &only] {
        strict.takes(&signer.sign(&claims)).await;
    }
    strict
        .takes(&only.sign_with(&json!({"alg": "EdDSA"}), &claims))
        .await;
    let header = |alg: &str, kid: &str| json!({ "alg": alg, "kid": kid });
    for token in [
        strict.signer.sign(&claims),
        a.sign_with(&header("ES256", "b"), &claims),
        a.sign_with(&header("ES256", "unknown"), &claims),
        a.sign_with(&header("ES256", ""), &claims),
        a.sign_with(&json!({"alg": "ES256"}), &claims),
        a.sign_with(&header("EdDSA", "a"), &claims),
        a.sign_with(&header("ES384", "a"), &claims),
        only.sign_with(&header("EdDSA", "unknown"), &claims),
        only.sign_with(&header("EdDSA", "a"), &claims),
    ] {
        strict.rejects(&token, UNTRUSTED).await;
    }
}

/// covers: CFG-092
#[tokio::test]
async fn a_changed_token_is_not_trusted() {
    let strict = Strict::start().await;
    let good = strict.token(json!({}));
    let parts: Vec<&str> = good.split('.').collect();
    let other = strict
        .claims(&json!({ "sub": "somebody else" }))
        .to_string();
    let changed = format!("{}.{}.{}", parts[0], encoded(&other), parts[2]);
    strict.rejects(&changed, UNTRUSTED).await;
    strict
        .rejects(&format!("{}.{}.", parts[0], parts[1]), UNTRUSTED)
        .await;
    let zeros = encoded("\0".repeat(64));
    strict
        .rejects(&format!("{}.{}.{zeros}", parts[0], parts[1]), UNTRUSTED)
        .await;
}

/// covers: CFG-092
#[tokio::test]
async fn times_are_checked_with_the_leeway_and_nothing_more() {
    let strict = Strict::start().await;
    let now = strict.clock.seconds();
    for good in [
        json!({ "exp": now - 59 }),
        json!({ "exp": now as f64 - 59.5 }),
        json!({ "nbf": now + 60 }),
        json!({ "nbf": now as f64 + 59.5 }),
        json!({ "nbf": null }),
        json!({ "exp": u64::MAX }),
        json!({ "iat": now + 9999 }),
    ] {
        strict.takes(&strict.token(good)).await;
    }
    for late in [
        json!(now - 60),
        json!(now as f64 - 60.5),
        json!(0),
        json!(-1),
    ] {
        strict
            .rejects(&strict.token(json!({ "exp": late })), EXPIRED)
            .await;
    }
    for early in [json!(now + 61), json!(now as f64 + 60.5), json!(u64::MAX)] {
        strict
            .rejects(&strict.token(json!({ "nbf": early })), NOT_YET_VALID)
            .await;
    }
    for no_time in [json!(null), json!("9999999999"), json!([now]), json!(true)] {
        strict
            .rejects(&strict.token(json!({ "exp": no_time })), MALFORMED)
            .await;
    }
    strict
        .rejects(&strict.token(json!({ "nbf": "0" })), MALFORMED)
        .await;

    let token = strict.token(json!({ "exp": now + 1 }));
    strict.takes(&token).await;
    strict.clock.advance(Duration::from_secs(60));
    strict.takes(&token).await;
    strict.clock.advance(Duration::from_secs(1));
    strict.rejects(&token, EXPIRED).await;
}

/// covers: CFG-092
#[tokio::test]
async fn audience_and_issuer_match_any_that_is_configured() {
    let strict = Strict::start().await;
    for good in [
        json!({ "aud": "other" }),
        json!({ "aud": ["x", "chat"] }),
        json!({ "iss": "https://two" }),
    ] {
        strict.takes(&strict.token(good)).await;
    }
    for aud in [
        json!(null),
        json!("x"),
        json!([]),
        json!(["x", "y"]),
        json!("chat "),
    ] {
        strict
            .rejects(&strict.token(json!({ "aud": aud })), AUDIENCE)
            .await;
    }
    for iss in [json!(null), json!("x"), json!(""), json!("https://one/")] {
        strict
            .rejects(&strict.token(json!({ "iss": iss })), ISSUER)
            .await;
    }
    for odd in [json!(7), json!(["chat", 7]), json!({})] {
        strict
            .rejects(&strict.token(json!({ "aud": odd })), MALFORMED)
            .await;
    }
    strict
        .rejects(&strict.token(json!({ "iss": ["https://one"] })), MALFORMED)
        .await;
}

/// covers: CFG-092
#[tokio::test]
async fn every_required_scope_must_be_there() {
    let strict = Strict::start().await;
    for good in [json!("write x read"), json!(["write", "read", "x"])] {
        strict.takes(&strict.token(json!({ "scope": good }))).await;
    }
    for less in [
        json!(null),
        json!(""),
        json!("read"),
        json!("readwrite"),
        json!("READ WRITE"),
        json!(["read"]),
        json!(["read write"]),
        json!([]),
    ] {
        strict
            .rejects(&strict.token(json!({ "scope": less })), SCOPE)
            .await;
    }
    strict
        .rejects(&strict.token(json!({ "scope": 7 })), MALFORMED)
        .await;
}

/// covers: CFG-092
#[tokio::test]
async fn an_api_key_is_taken_first_and_needs_no_scope() {
    let strict = Strict::start().await;
    for scheme in ["Bearer", "bearer", "BEARER"] {
        call(&strict.peer, QUERY, Some(&format!("{scheme} {API_KEY}")))
            .await
            .expect("taken");
    }
    strict.takes(&"s".repeat(8192)).await;
    for near in [
        &API_KEY[1..],
        &format!("{API_KEY}c"),
        &API_KEY.to_uppercase(),
    ] {
        strict.rejects(near, MALFORMED).await;
    }
}

/// covers: CFG-092
#[tokio::test]
async fn api_keys_alone_trust_no_token() {
    let clock = TestClock::new();
    let mut auth = section(KeySource::None);
    auth.api_keys = BTreeMap::from([("monitor".into(), Secret::new(API_KEY))]);
    let peer = serving(auth, &clock).await;
    query(&peer, API_KEY).await.expect("it is taken");
    let signer = Signer::new("a", SigningAlgorithm::EdDsa);
    let token = signer.sign(&json!({ "exp": clock.seconds() + 60 }));
    assert_code(&peer, &token, Code::Unauthenticated).await;
    assert!(published(&peer).await.keys.is_empty());
}

/// covers: CFG-092
#[tokio::test]
async fn each_algorithm_is_taken_from_the_file() {
    let clock = TestClock::new();
    for algorithm in ALGORITHMS {
        let signer = Signer::new("a", algorithm);
        let peer = serving(section(inline(&[&signer])), &clock).await;
        let token = signer.sign(&json!({ "exp": clock.seconds() + 60 }));
        query(&peer, &token)
            .await
            .unwrap_or_else(|status| panic!("{algorithm:?} {status}"));
        assert_code(&peer, &token[..token.len() - 4], Code::Unauthenticated).await;
    }
}

/// A key that does not fit its algorithm would refuse every token, so the server does not start.
#[tokio::test]
async fn a_key_of_another_kind_is_refused_at_startup() {
    let clock = TestClock::new();
    let small = Signer::new("a", SigningAlgorithm::Es256);
    for algorithm in ALGORITHMS {
        let signer = Signer::new("a", algorithm);
        for (alg, pem) in [
            (SigningAlgorithm::Es384, &small.pem),
            (algorithm, &signer.pem.replace("PUBLIC KEY", "CERTIFICATE")),
            (algorithm, &signer.pem.replace("PUBLIC KEY", "PRIVATE KEY")),
            (algorithm, &String::new()),
        ] {
            let keys = KeySource::Inline(vec![InlineKey {
                kid: "a".into(),
                alg,
                public_key: pem.clone(),
            }]);
            let error = Backend::start(config(section(keys), &clock))
                .await
                .unwrap_err();
            let error = error.to_string();
            assert!(error.contains("auth.keys.public_key"), "{error}");
        }
    }
}

/// covers: CFG-012
#[tokio::test]
async fn a_rejection_is_logged_with_the_request_and_the_reason() {
    let strict = Strict::start().await;
    let log = Log::default();
    let _guard = log.listen();
    let token = strict.token(json!({ "aud": "x" }));
    let status = query(&strict.peer, &token).await.unwrap_err();
    let request_id = status
        .metadata()
        .get("x-request-id")
        .expect("an id")
        .to_str()
        .unwrap();
    let line = log.line_with("a request was turned away");
    for part in ["audience", IDENTIFIER, request_id] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!log.text().contains(&token[..20]), "{}", log.text());
}
