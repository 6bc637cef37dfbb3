//! Whose database it is, and whether its history is whole.

use super::*;

async fn refused(settings: &PostgresOptions) -> SetupError {
    let opened = PostgresStore::open(settings.clone(), Arc::new(NoHooks));
    opened.await.expect_err("it is refused")
}

#[tokio::test]
async fn a_database_belongs_to_one_deployment() {
    let Some(settings) = fresh() else { return };
    let (one, two) = tokio::join!(open(&settings), open(&settings));
    fill(&one, group(1), &["a"]).await;
    two.close().await;
    let mut other = settings.clone();
    other.identifier = "org.example.other".to_owned();
    let error = refused(&other).await;
    assert!(matches!(error, SetupError::OtherDeployment), "{error}");
    assert!(matches!(
        fence(&other).await,
        Err(SetupError::OtherDeployment)
    ));
    let again = open(&settings).await;
    assert_eq!(
        again.heads(vec![group(1)]).await.expect("heads"),
        [1.into()]
    );
}

#[tokio::test]
async fn newer_tables_and_unreadable_addresses_are_refused() {
    let Some(settings) = fresh() else { return };
    open(&settings).await.close().await;
    sql(&settings, "INSERT INTO migration (version) VALUES (1000)").await;
    let error = refused(&settings).await;
    assert!(
        matches!(error, SetupError::Newer { found: 1000, .. }),
        "{error}"
    );
    let secret = "postgresql://xmtp:hunter2@localhost:port/db";
    let error = refused(&super::settings(secret)).await;
    assert!(matches!(error, SetupError::Address), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

/// What a restore or a lossy promotion looks like from here.
#[tokio::test]
async fn a_cut_history_is_served_only_after_a_fence() {
    let Some(settings) = fresh() else { return };
    let store = open(&settings).await;
    fill(&store, group(1), &["a", "b"]).await;
    let cut = "UPDATE deployment SET timeline = timeline - 1";
    sql(&settings, cut).await;
    assert_eq!(store.tail().await.expect_err("no tail"), TailError::Final);
    let publishers = "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'xmtp-backend'";
    until(&settings, publishers, "f").await;
    let late = store.publish(vec![envelope(group(1), "late")]).await;
    assert_eq!(
        late,
        Err(PublishError::Unavailable),
        "a new connection sees the cut"
    );
    store.close().await;
    let error = refused(&settings).await;
    assert!(matches!(error, SetupError::Unfenced), "{error}");
    assert!(error.to_string().contains("xmtp-backend fence"));

    assert_eq!(fence(&settings).await.expect("a fence").get(), 2 << 32);
    let store = open(&settings).await;
    let mut tail = store.tail().await.expect("a tail");
    let next = store_one(&store, envelope(group(1), "c")).await;
    assert_eq!(next.sequence_id.get(), (2 << 32) + 1);
    assert_eq!(texts(&mut tail, 1).await, ["c"]);
    assert_eq!(fence(&settings).await.expect("a fence").get(), 4 << 32);
}
