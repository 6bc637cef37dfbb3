//! The section `[auth]`.

use super::*;
use xmtp_backend::config::{KeySource, SigningAlgorithm};
use xmtp_proto::backend::v1::AuthConfiguration;

const EC_KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEpNdsT3Q0dewuO8sQuXkZYlIw5z7l
HfwmsnawltzbXXjeTEtsfum1+YbDdK3PMdIbiCDNxcpu0tz7eh+aVxAGkw==
-----END PUBLIC KEY-----
";

const ED_KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA4R/dtq6K91ChqEN2qtt9l1DHiFsoTgiqiGZe1ASXdEk=
-----END PUBLIC KEY-----
";

const P384_KEY: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEW1IcWki6t5EFv22kwW74wcu8xbaYcSZI
8VKn0KUqhKN6omU4J18V21kNkj7kX+1fBUZw0JvtRITY/wRGzh4eBZ5HuZ+AnvTp
S9xtAzpk+r4+c2/A17DQloHwtloj+3g+
-----END PUBLIC KEY-----
";

/// A key of 1024 bits.
const SHORT_RSA_KEY: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDP2dcp8nB6Y9JS7iHW4fP/xjN5
5EXnJeHf1NlmG4zM46qYXBgDhyIven4jBIz7xYmw2Y21wqh5KwA197ysuhUQ/K1V
mDQZ2qYXh40mNJ2OJHevI3ySH36AeBhvJJ4EBQKO8JCgfshNOVAz2ViQHNmbLFze
CQ4/I/tK+hQfRT/LkwIDAQAB
-----END PUBLIC KEY-----
";

/// An API key of the shortest length.
const API_KEY: &str = "0123456789abcdef0123456789abcdef";

/// Returns the text of a file whose section is switched on and says more.
fn on(more: &str) -> String {
    file(&format!("[auth]\nenabled = true\n{more}"))
}

fn key(kid: &str, alg: &str, pem: &str) -> String {
    format!("[[auth.keys]]\nkid = \"{kid}\"\nalg = \"{alg}\"\npublic_key = \"\"\"\n{pem}\"\"\"\n")
}

/// covers: CFG-003, CFG-102
#[test]
fn authentication_must_be_switched_explicitly() {
    refuses(&file("[auth]\n"), "auth.enabled");
    refuses(&file("[auth]\naudiences = [\"a\"]\n"), "auth.enabled");
    refuses(&on(""), "auth.enabled");
    refuses(&on("audiences = [\"a\"]\n"), "auth.enabled");
    assert!(Config::from_toml(&file("")).unwrap().auth.is_none());
}

/// covers: CFG-004, CFG-028, CFG-102
#[tokio::test]
async fn authentication_switched_off_ignores_its_other_fields() {
    let text = file(
        "[auth]\nenabled = false\njwks_url = 7\nkeys = \"x\"\nleeway_seconds = -1\n\
         audiences = [\"a\"]\napi_keys = { one = \"env:XMTP_BACKEND_NOT_SET\" }\n",
    );
    assert_eq!(served(&text).await.auth, Some(AuthConfiguration::default()));
    let peer = Peer::start(Config::from_toml(&text).unwrap()).await;
    peer.publish_one(message(1, "a")).await;
    peer.query(QueryRequest {
        queries: vec![from(&group_topic(1), 0)],
        limit: 1,
    })
    .await
    .unwrap();
    refuses(&file("[auth]\nenabled = false\nother = 1\n"), "auth.other");
}

#[test]
fn each_source_of_credentials_is_read() {
    let text = on("jwks_url = \"https://login.example.org/keys\"\naudiences = [\"a\", \"b\"]\n");
    let auth = Config::from_toml(&text).unwrap().auth.unwrap();
    let KeySource::Jwks(settings) = auth.keys else {
        panic!("a key set")
    };
    assert_eq!(settings.url.expose(), "https://login.example.org/keys");
    assert_eq!(
        (settings.refresh_seconds, settings.max_stale_seconds),
        (300, 3600)
    );
    assert_eq!((auth.audiences.len(), auth.leeway_seconds), (2, 60));

    let keys = key("one", "ES256", EC_KEY) + &key("two", "EdDSA", ED_KEY);
    let auth = Config::from_toml(&on(&keys)).unwrap().auth.unwrap();
    let KeySource::Inline(keys) = auth.keys else {
        panic!("keys of the file")
    };
    let named: Vec<_> = keys.iter().map(|key| (key.kid.as_str(), key.alg)).collect();
    let (es256, ed_dsa) = (SigningAlgorithm::Es256, SigningAlgorithm::EdDsa);
    assert_eq!(named, [("one", es256), ("two", ed_dsa)]);

    let text = on(&format!("api_keys = {{ monitor = \"{API_KEY}\" }}\n"));
    let auth = Config::from_toml(&text).unwrap().auth.unwrap();
    assert!(matches!(auth.keys, KeySource::None));
    assert_eq!(auth.api_keys["monitor"].expose(), API_KEY);
    assert!(!format!("{auth:?}").contains(API_KEY));
}

#[test]
fn each_rule_of_authentication_names_its_field() {
    let jwks = "jwks_url = \"https://login.example.org/keys\"\n";
    let api = |name: &str, value: &str| format!("[auth.api_keys]\n{name} = \"{value}\"\n");
    let stale = |seconds: u32| format!("{jwks}jwks_max_stale_seconds = {seconds}\n");
    let twice = api("one", API_KEY) + &format!("two = \"{API_KEY}\"\n");
    let many: String = (0..65)
        .map(|number| key(&number.to_string(), "EdDSA", ED_KEY))
        .collect();
    let cases = [
        (
            format!("{jwks}{}", key("a", "ES256", EC_KEY)),
            "auth.jwks_url",
        ),
        (
            "jwks_url = \"http://login.example.org\"\n".into(),
            "auth.jwks_url",
        ),
        (
            "jwks_url = \"env:XMTP_BACKEND_NOT_SET\"\n".into(),
            "auth.jwks_url",
        ),
        (stale(339), "auth.jwks_max_stale_seconds"),
        (
            format!("{jwks}jwks_refresh_seconds = 0\n"),
            "auth.jwks_refresh_seconds",
        ),
        (
            format!("{jwks}leeway_seconds = 301\n"),
            "auth.leeway_seconds",
        ),
        (
            format!("{jwks}leeway_seconds = \"secret\"\n"),
            "auth.leeway_seconds",
        ),
        (format!("{jwks}issuers = [\"\"]\n"), "auth.issuers"),
        (
            key("a", "ES256", EC_KEY) + &key("a", "EdDSA", ED_KEY),
            "auth.keys.kid",
        ),
        (key("", "ES256", EC_KEY), "auth.keys.kid"),
        (key("a", "HS256", EC_KEY), "auth.keys.alg"),
        (key("a", "ES256", ED_KEY), "auth.keys.public_key"),
        (key("a", "EdDSA", "secret"), "auth.keys.public_key"),
        (key("a", "ES384", EC_KEY), "auth.keys.public_key"),
        (key("a", "ES256", P384_KEY), "auth.keys.public_key"),
        (key("a", "RS256", SHORT_RSA_KEY), "auth.keys.public_key"),
        (key("a", "EdDSA", "# no PEM\n"), "auth.keys.public_key"),
        (many, "auth.keys"),
        (key("a", "ES256", EC_KEY) + "other = 1\n", "auth.keys.other"),
        (api("one", &API_KEY[1..]), "auth.api_keys.one"),
        (api("one", &"a".repeat(8193)), "auth.api_keys.one"),
        (api("one", &API_KEY.replace('0', " ")), "auth.api_keys.one"),
        (api("one", "env:XMTP_BACKEND_NOT_SET"), "auth.api_keys.one"),
        (twice, "auth.api_keys.two"),
    ];
    for (more, field) in cases {
        refuses(&on(&more), field);
        let error = Config::from_toml(&on(&more)).unwrap_err().to_string();
        assert!(
            !error.contains("secret") && !error.contains(API_KEY),
            "{error}"
        );
    }
    for good in [
        stale(340),
        format!("{jwks}leeway_seconds = 300\n"),
        "jwks_url = \"http://127.0.0.1:1/keys\"\n".into(),
        "jwks_url = \"http://[::1]:1/keys\"\n".into(),
        api("one", &"a".repeat(8192)),
        key("a", "ES384", P384_KEY),
    ] {
        Config::from_toml(&on(&good)).expect(&good);
    }
}
