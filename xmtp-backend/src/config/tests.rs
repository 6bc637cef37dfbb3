//! What of the section `[auth]` is published.

use prost::Message;
use xmtp_proto::backend::v1::auth_configuration::SigningKey;

use super::*;

fn config(keys: KeySource) -> Config {
    let mut config = Config::ephemeral("org.example.test");
    config.auth = Some(Auth {
        keys,
        api_keys: BTreeMap::from([("monitor".to_owned(), Secret::new("a secret".repeat(8)))]),
        audiences: vec!["audience".to_owned()],
        issuers: vec!["issuer".to_owned()],
        required_scopes: vec!["scope".to_owned()],
        leeway_seconds: 54_321,
    });
    config
}

fn signing_key(kid: &str, alg: &str) -> SigningKey {
    SigningKey {
        kid: kid.to_owned(),
        alg: alg.to_owned(),
    }
}

/// covers: CFG-024, CFG-026
#[test]
fn keys_of_the_file_are_published_by_name() {
    let key = InlineKey {
        kid: "one".to_owned(),
        alg: SigningAlgorithm::EdDsa,
        public_key: "a secret key".to_owned(),
    };
    let config = config(KeySource::Inline(vec![key]));
    let response = published(&config, &[signing_key("other", "RS256")]).unwrap();
    let auth = response.auth.clone().unwrap();
    assert!(auth.enabled);
    assert_eq!(auth.keys, [signing_key("one", "EdDSA")]);
    assert_eq!(auth.audiences, ["audience"]);
    assert_eq!(auth.issuers, ["issuer"]);
    assert_eq!(auth.required_scopes, ["scope"]);
    let bytes = response.encode_to_vec();
    let shows = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(!shows(b"secret") && !shows(b"monitor"));
}

/// covers: CFG-024
#[test]
fn a_key_set_is_published_as_it_was_loaded_and_its_address_is_not() {
    let config = config(KeySource::Jwks(JwksSettings {
        url: Secret::new("https://secret.example.org"),
        refresh_seconds: 54_322,
        max_stale_seconds: 54_323,
    }));
    let loaded = [signing_key("one", "ES256"), signing_key("two", "RS512")];
    let response = published(&config, &loaded).unwrap();
    assert_eq!(response.auth.clone().unwrap().keys, loaded);
    let bytes = response.encode_to_vec();
    let shows = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(!shows(b"secret"));
    for number in [54_321_u64, 54_322, 54_323] {
        let mut varint = Vec::new();
        prost::encoding::encode_varint(number, &mut varint);
        assert!(!shows(&varint), "{number}");
    }
}

/// covers: CFG-008
#[test]
fn a_loaded_key_set_counts_towards_the_size_of_the_response() {
    let config = config(KeySource::None);
    let error = |key: SigningKey| {
        let mut config = config.clone();
        config.auth.as_mut().unwrap().keys = KeySource::Jwks(JwksSettings {
            url: Secret::new("https://example.org"),
            refresh_seconds: 300,
            max_stale_seconds: 3600,
        });
        published(&config, &[key]).err().map(|error| error.field)
    };
    assert_eq!(error(signing_key("one", "ES256")), None);
    let large = signing_key(&"k".repeat(64 * 1024), "ES256");
    assert_eq!(error(large).as_deref(), Some("GetConfigurationResponse"));
}

#[test]
fn the_schema_names_every_section() {
    let schema = schema();
    let text = format!("{:#}", schema.as_value());
    for section in ["server", "telemetry", "database", "auth", "limits", "mls"] {
        assert!(text.contains(&format!("\"{section}\"")), "{section}");
    }
}
