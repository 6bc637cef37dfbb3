//! The sections that are not published: telemetry, database, publishing, streams.

use super::*;
use xmtp_backend::config::{LogFormat, PostgresSettings};

#[test]
fn every_section_may_be_left_out() {
    let text = format!("[server]\nidentifier = \"org.example.test\"\n{DATABASE}");
    let config = Config::from_toml(&text).unwrap();
    let expected = Config::new("org.example.test", Database::Memory);
    assert_eq!(format!("{config:?}"), format!("{expected:?}"));
    assert_eq!(config.server.listen.to_string(), "0.0.0.0:5050");
    let metrics = config.telemetry.metrics_listen.unwrap();
    assert_eq!(metrics.to_string(), "0.0.0.0:9464");
    assert!(config.server.request_logger && config.auth.is_none());
    assert_eq!(config.database_limits.max_connections, 20);
    assert_eq!(config.publishing.max_barrier_wait_ms, 100);
    assert_eq!(config.validation.max_scw_cache_entries, 10_000);
    assert_eq!(
        (
            config.streams.poll_interval_ms,
            config.streams.max_gap_ranges
        ),
        (100, 10_000)
    );
    assert!(Config::ephemeral("a").telemetry.metrics_listen.is_none());
}

#[test]
fn every_section_is_read() {
    let more = "log_level = \"debug\"\nlog_format = \"json\"\nrequest_logger = false\n[database]";
    let text = file(
        "[telemetry]\nmetrics_listen = \"127.0.0.1:1\"\notlp_logs = true\n\
                     otlp_endpoint = \"http://collector:4317\"\nservice_name = \"chat\"\n\
                     sample_ratio = 0.5\nresource_attributes = { region = \"x\" }\n\
                     [publishing]\nmax_publish_duration_ms = 6000\nmax_barrier_wait_ms = 50\n\
                     [streams]\npoll_interval_ms = 25\nmax_gap_ranges = 7\n\
                     [validation]\nmax_scw_cache_entries = 9\n",
    );
    let config = Config::from_toml(&text.replace("[database]", more)).unwrap();
    assert_eq!(config.server.log_level, tracing::Level::DEBUG);
    assert_eq!(config.server.log_format, LogFormat::Json);
    assert!(!config.server.request_logger && config.telemetry.otlp_logs);
    let telemetry = &config.telemetry;
    assert_eq!(telemetry.metrics_listen.unwrap().port(), 1);
    assert_eq!(
        telemetry.otlp_endpoint.as_ref().unwrap().expose(),
        "http://collector:4317"
    );
    assert_eq!(
        (telemetry.service_name.as_str(), telemetry.sample_ratio),
        ("chat", 0.5)
    );
    assert_eq!(telemetry.resource_attributes["region"], "x");
    assert_eq!(config.publishing.max_publish_duration_ms, 6000);
    assert_eq!(
        (
            config.streams.poll_interval_ms,
            config.streams.max_gap_ranges
        ),
        (25, 7)
    );
    assert_eq!(config.validation.max_scw_cache_entries, 9);
}

#[tokio::test]
async fn postgres_is_read_and_its_secrets_are_hidden() {
    let text = file("").replace(
        "url = \"memory:\"",
        "url = \"postgres://u:secret@h/n\"\nreplica_url = \"postgres://u:secret@r/n\"\n\
         max_connections = 5\nmax_statement_timeout_ms = 9999",
    );
    let config = Config::from_toml(&text).unwrap();
    let Database::Postgres(PostgresSettings { url, replica_url }) = &config.database else {
        panic!("PostgreSQL")
    };
    assert_eq!(url.expose(), "postgres://u:secret@h/n");
    assert_eq!(
        replica_url.as_ref().unwrap().expose(),
        "postgres://u:secret@r/n"
    );
    let limits = config.database_limits;
    assert_eq!(
        (limits.max_connections, limits.max_statement_timeout_ms),
        (5, 9999)
    );
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn the_attributes_that_the_server_sets_are_refused() {
    for attribute in ["service.name", "xmtp.backend.identifier"] {
        let more = format!("[telemetry]\nresource_attributes = {{ \"{attribute}\" = \"x\" }}\n");
        refuses(
            &file(&more),
            &format!("telemetry.resource_attributes.{attribute}"),
        );
    }
}

#[test]
fn each_rule_of_the_inner_sections_names_its_field() {
    let cases = [
        (
            "[telemetry]\nmetrics_listen = \"9464\"\n",
            "telemetry.metrics_listen",
        ),
        (
            "[telemetry]\notlp_endpoint = \"collector\"\n",
            "telemetry.otlp_endpoint",
        ),
        (
            "[telemetry]\nservice_name = \"\"\n",
            "telemetry.service_name",
        ),
        (
            "[telemetry]\nsample_ratio = 1.1\n",
            "telemetry.sample_ratio",
        ),
        (
            "[telemetry]\nsample_ratio = nan\n",
            "telemetry.sample_ratio",
        ),
        (
            "[publishing]\nmax_publish_duration_ms = 5000\n",
            "publishing.max_publish_duration_ms",
        ),
        (
            "[publishing]\nmax_barrier_wait_ms = 0\n",
            "publishing.max_barrier_wait_ms",
        ),
        (
            "[publishing]\nmax_barrier_wait_ms = 10000\n",
            "publishing.max_barrier_wait_ms",
        ),
        (
            "[streams]\npoll_interval_ms = 0\n",
            "streams.poll_interval_ms",
        ),
        ("[streams]\nmax_gap_ranges = 0\n", "streams.max_gap_ranges"),
        (
            "[validation]\nmax_scw_cache_entries = 0\n",
            "validation.max_scw_cache_entries",
        ),
        ("[chains]\n\"eip155:1\" = \"https://\"\n", "chains.eip155:1"),
    ];
    for (more, field) in cases {
        refuses(&file(more), field);
    }
    let database = |more: &str| file("").replace("url = \"memory:\"", more);
    let cases = [
        (
            "url = \"memory:\"\nmax_connections = 0",
            "database.max_connections",
        ),
        (
            "url = \"memory:\"\nmax_statement_timeout_ms = 0",
            "database.max_statement_timeout_ms",
        ),
        (
            "url = \"memory:\"\nreplica_url = \"postgres://h/n\"",
            "database.replica_url",
        ),
        (
            "url = \"postgres://h/n\"\nreplica_url = \"mysql://h/n\"",
            "database.replica_url",
        ),
        ("url = \"postgres://h/n?sslmode=verify\"", "database.url"),
        (
            "url = \"postgres://h/n\"\nreplica_url = \"postgres://h/n?sslmode=verify-ca\"",
            "database.replica_url",
        ),
    ];
    for (more, field) in cases {
        refuses(&database(more), field);
    }
    let server = |more: &str| file("").replace("[database]", &format!("{more}\n[database]"));
    refuses(&server("log_level = \"loud\""), "server.log_level");
    refuses(&server("log_format = \"xml\""), "server.log_format");
    let error = Config::from_toml(&server("log_format = \"xml\"")).unwrap_err();
    assert_eq!(error.problem, "must be `text` or `json`");
}

/// A value that spans lines, or one that is no TOML, is not mistaken for the name of a field.
#[test]
fn no_part_of_a_value_is_shown_as_a_field() {
    let cases = [
        (
            "[limits]\nmax_query_limit = \"\"\"\nx = secret\n\"\"\"\n",
            "limits.max_query_limit",
        ),
        (
            "[chains]\n\"eip155:1\" = [\n\"secret = 1\",\n2]\n",
            "chains.eip155:1",
        ),
        ("[chains]\n\"eip155:1\" = secret = 1\n", "line 9"),
        (
            "limits = { max_query_limit = [\"secret=\"] }\n",
            "telemetry.limits",
        ),
    ];
    for (more, field) in cases {
        refuses(&file(more), field);
        let error = Config::from_toml(&file(more)).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
