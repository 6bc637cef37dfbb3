//! TLS to a real server, with authorities and certificates that are made for the test.

use std::net::Ipv4Addr;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::*;
use crate::testing::Proxy;

/// The name that the certificate of the server is for.
const NAME: &str = "db.example.test";

/// An authority that signs certificates of servers.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Returns a certificate for a name, and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes its certificate to a file.
    fn save(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).expect("a file");
    }
}

/// A server with TLS, and authorities of which one signed its certificate.
struct Rig {
    server: Postgres,
    address: Ipv4Addr,
    folder: tempfile::TempDir,
}

impl Rig {
    fn start() -> Option<Self> {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let (certificate, key) = ours.sign(NAME);
        let (server, address) = Postgres::start_with_tls(&certificate, &key)?;
        let folder = tempfile::tempdir().expect("a folder");
        ours.save(&folder.path().join("ours.pem"));
        theirs.save(&folder.path().join("theirs.pem"));
        std::fs::write(folder.path().join("none.pem"), "no certificate").expect("a file");
        Some(Self {
            server,
            address,
            folder,
        })
    }

    /// Returns the settings for a database that is reached under a name; files of authorities are
    /// written as `{ours}`.
    fn settings(&self, name: &str, database: &str, parameters: &str) -> PostgresOptions {
        let mut parameters = parameters.to_owned();
        for file in ["ours", "theirs", "none", "missing"] {
            let path = self.folder.path().join(format!("{file}.pem"));
            let path = path.to_str().expect("a path in text");
            parameters = parameters.replace(&format!("{{{file}}}"), path);
        }
        let address = self.address;
        settings(&format!(
            "postgresql://xmtp@{name}/{database}?hostaddr={address}&{parameters}"
        ))
    }
}

/// Connects and says whether what passes is secret.
async fn is_encrypted(settings: &PostgresOptions) -> Result<bool, SetupError> {
    let client = Server::parse(&settings.url)?.connect("test").await?;
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

#[tokio::test]
async fn a_connection_is_as_secret_as_its_address_asks() {
    let Some(rig) = Rig::start() else { return };
    let (here, elsewhere) = (NAME, "other.example.test");
    for (name, parameters, encrypted) in [
        (here, "sslmode=disable", false),
        (here, "", true),
        (here, "sslmode=prefer", true),
        (elsewhere, "sslmode=require", true),
        (elsewhere, "sslmode=require&sslrootcert={ours}", true),
        (elsewhere, "sslmode=verify-ca&sslrootcert={ours}", true),
        (here, "sslmode=verify-full&sslrootcert={ours}", true),
    ] {
        let settings = rig.settings(name, "postgres", parameters);
        let found = is_encrypted(&settings).await;
        assert_eq!(found.expect(parameters), encrypted, "{name} {parameters}");
    }
    for (name, parameters) in [
        (here, "sslmode=require&sslrootcert={theirs}"),
        (here, "sslmode=verify-ca&sslrootcert={theirs}"),
        (here, "sslmode=verify-full&sslrootcert={theirs}"),
        (elsewhere, "sslmode=verify-full&sslrootcert={ours}"),
    ] {
        let settings = rig.settings(name, "postgres", parameters);
        let error = is_encrypted(&settings).await.expect_err(parameters);
        assert!(
            matches!(error, SetupError::Tls { .. }),
            "{name} {parameters}: {error}"
        );
        assert!(error.to_string().contains("sslrootcert"), "{error}");
    }
    // No authority of the machine signed it; there may be none at all.
    for parameters in ["sslmode=verify-full", "sslrootcert=system"] {
        let settings = rig.settings(here, "postgres", parameters);
        is_encrypted(&settings).await.expect_err(parameters);
    }
    for file in ["{none}", "{missing}"] {
        let parameters = format!("sslmode=verify-full&sslrootcert={file}");
        let settings = rig.settings(here, "postgres", &parameters);
        let error = is_encrypted(&settings).await.expect_err(file);
        assert!(matches!(error, SetupError::Authorities), "{error}");
    }
}

#[tokio::test]
async fn everything_that_a_store_says_is_secret() {
    let Some(rig) = Rig::start() else { return };
    let url = rig.server.database();
    let database = url.rsplit('/').next().expect("a name");
    let parameters = "sslmode=verify-full&sslrootcert={ours}";
    let mut settings = rig.settings(NAME, database, parameters);
    settings.replica_url = Some(settings.url.clone());
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");
    fill(&store, group(1), &["a"]).await;
    assert_eq!(texts(&mut tail, 1).await, ["a"]);
    store
        .query(query(&[(group(1), 0)], 9))
        .await
        .expect("a page");
    store.heads(vec![group(1)]).await.expect("heads");
    store
        .newest(vec![group(1)], true, 1 << 20)
        .await
        .expect("the newest");
    let secret = "SELECT count(*) FILTER (WHERE ssl) >= 6 AND bool_and(ssl)
        FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE datname = current_database() AND application_name LIKE 'xmtp-backend%'";
    assert_eq!(sql(&settings, secret).await, "t");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_asked_for() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let proxy = Proxy::to(server).await;
    let url = server.database();
    let address = proxy.address(url.rsplit('/').next().expect("a name"));
    for mode in ["require", "verify-full&sslrootcert=system"] {
        let settings = settings(&format!("{address}?sslmode={mode}"));
        let opened = PostgresStore::open(settings, Arc::new(NoHooks)).await;
        let error = opened.expect_err(mode);
        if matches!(error, SetupError::Authorities) {
            // The machine trusts nobody.
            continue;
        }
        assert!(error.to_string().contains("sslmode=disable"), "{error}");
    }
    for mode in ["disable", "prefer"] {
        let settings = settings(&format!("{address}?sslmode={mode}"));
        assert!(!is_encrypted(&settings).await.expect(mode));
    }
}
