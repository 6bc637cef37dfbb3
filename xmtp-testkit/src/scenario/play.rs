//! Playing a scenario, step by step, over whatever crash is planned.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;
use thiserror::Error;
use xmtp_core::delivery::{Filter, Message, Scope, StreamError};
use xmtp_core::send::SendError;
use xmtp_core::storage::{OpenError, StorageError};
use xmtp_core::sync::SyncError;
use xmtp_mls::content::{decode_text, encode_text};
use xmtp_mls::{BuildError, Client, ClientError, Group};
use xmtp_proto::GroupId;
use xmtp_proto::content::EncodedContent;
use xmtp_proto::storage::v1::MessageKind;

use super::{CrashAt, Engine, PersonState, Scenario, Step, World, forge, verdict};
use crate::rogue::{Rogue, RogueError};

/// Crashes after which a step is given up; each crash is planned once.
const MAX_TRIES: usize = 4;
/// How long a sync may take, by the clock of whoever syncs.
const SYNC_PATIENCE: Duration = Duration::from_secs(60 * 60);
/// How long a sync is given that is to stay incomplete, where nothing ends it earlier.
const SYNC_IN_PART: Duration = Duration::from_secs(2);
/// Messages read of one group.
const MAX_TEXTS: u32 = 128;

/// Why a scenario fails.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum PlayError {
    #[error("line {line} fails: {cause}")]
    Step { line: usize, cause: String },
    #[error("nobody is called {0}")]
    Unknown(String),
    #[error("a database breaks its rules: {0}")]
    Broken(String),
    #[error("{0}")]
    Told(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error(transparent)]
    Rogue(#[from] RogueError),
    #[error("a wallet's secret is no key")]
    Wallet(#[from] xmtp_identity::InvalidSecret),
}

/// How a scenario ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What is left of each person.
    pub people: BTreeMap<String, PersonState>,
    /// How often each person committed.
    pub commits: BTreeMap<String, u64>,
}

/// Plays a scenario to its end and answers what is left.
///
/// # Errors
/// The step that fails, or the rule that a database breaks at the end.
pub async fn play(
    scenario: &Scenario,
    engine: Engine,
    crash: Option<CrashAt>,
) -> Result<Outcome, PlayError> {
    let mut world = World::start(scenario, engine, crash).await?;
    for (line, step) in &scenario.steps {
        repeat(&mut world, *line, step).await?;
    }
    let mut outcome = Outcome {
        people: BTreeMap::new(),
        commits: BTreeMap::new(),
    };
    for name in &scenario.people {
        let mut state = final_state(&mut world, name).await;
        if state.is_err() && world.has_died(name) {
            state = final_state(&mut world, name).await;
        }
        outcome.people.insert(name.clone(), state?);
        outcome.commits.insert(name.clone(), world.commits(name)?);
    }
    world.end().await?;
    Ok(outcome)
}

/// Does a step, again from its start when somebody's process died during it.
async fn repeat(world: &mut World, line: usize, step: &Step) -> Result<(), PlayError> {
    let told = |cause: PlayError| PlayError::Step {
        line,
        cause: cause.to_string(),
    };
    world.handed.in_step = 0;
    for _ in 0..MAX_TRIES {
        let result = act(world, line, step).await;
        let died = world.people.keys().any(|name| world.has_died(name));
        match result {
            Ok(()) => return Ok(()),
            Err(_) if died => {}
            Err(cause) => return Err(told(cause)),
        }
    }
    Err(told(PlayError::Told("it never came through".to_owned())))
}

async fn act(world: &mut World, line: usize, step: &Step) -> Result<(), PlayError> {
    match step {
        Step::Creates { who, group } => {
            let client = world.client(who).await?;
            let id = created(&client, group).await?;
            world.groups.insert(group.clone(), id);
            Ok(())
        }
        Step::Adds { who, whom, group } => {
            world.client(whom).await?;
            let inbox = world.inbox(whom)?;
            superseded(
                group_of(world, who, group)
                    .await?
                    .add_members(&[inbox])
                    .await,
            )
        }
        Step::Removes { who, whom, group } => {
            let inbox = world.inbox(whom)?;
            superseded(
                group_of(world, who, group)
                    .await?
                    .remove_members(&[inbox])
                    .await,
            )
        }
        Step::Renames { who, group, name } => {
            superseded(group_of(world, who, group).await?.rename(name).await)
        }
        Step::Sends { who, group, text } => {
            let group = group_of(world, who, group).await?;
            let key = format!("line {line}");
            group.send_with_key(&encode_text(text), &key).await?;
            Ok(())
        }
        Step::Syncs { who } => {
            let client = world.client(who).await?;
            client.sync_all_within(SYNC_PATIENCE).await?;
            Ok(())
        }
        Step::Consumes { who, count } => consume(world, who, *count).await,
        Step::Restarts { who } => {
            world.close(who).await?;
            world.client(who).await.map(|_| ())
        }
        _ => act_rogue(world, step).await,
    }
}

/// Does what only rogues do, or what happens to those who meet them.
async fn act_rogue(world: &mut World, step: &Step) -> Result<(), PlayError> {
    match step {
        Step::Forges {
            who,
            posts,
            what,
            label,
        } => {
            forge::forge(world, who, what, label).await?;
            match posts {
                true => forge::post(world, label).await,
                false => Ok(()),
            }
        }
        Step::Posts { label, .. } => forge::post(world, label).await,
        Step::CannotPost { label, .. } => forge::cannot_post(world, label).await,
        Step::Founds {
            who,
            form,
            group,
            whom,
        } => forge::found_group(world, who, form, group, whom).await,
        Step::Sees { who, kept, posted } => {
            let envelope = world.kept(kept)?.envelope;
            let (_, sequence) = world.posted(posted)?;
            world.shown(who)?.show(sequence.get(), envelope);
            Ok(())
        }
        Step::SeesBrokenInbox { who, whom } => forge::break_inbox(world, who, whom).await,
        Step::Revokes { who, whom } => forge::revoke(world, who, whom).await,
        Step::LosesProposals { who, group } => {
            let group = world.group(group)?;
            let client = world.client(who).await?;
            // Whoever lost power has to have them again before they can be lost.
            client.sync_all_within(SYNC_PATIENCE).await?;
            Ok(Rogue::of(&client, 0)?.lose_proposals(&group)?)
        }
        Step::SyncsInPart { who } => match syncs_whole(world, who).await? {
            false => Ok(()),
            true => Err(PlayError::Told("the sync is complete".to_owned())),
        },
        Step::Hurries { who } => {
            world.hurry(who)?;
            world.close(who).await
        }
        Step::RestartsLater { who, days } => {
            world.be_later(who, *days)?;
            world.close(who).await?;
            world.client(who).await.map(|_| ())
        }
        _ => assert(world, step).await,
    }
}

async fn assert(world: &mut World, step: &Step) -> Result<(), PlayError> {
    match step {
        Step::Has { who, group, texts } => {
            let found = texts_of(world, who, group).await?;
            equal(&found, texts)
        }
        Step::Membership { who, group, is_in } => {
            let found = group_of(world, who, group).await?.is_active().await?;
            equal(&found, is_in)
        }
        Step::Agrees { who, whom, group } => {
            let (one, other) = (
                group_of(world, who, group).await?,
                group_of(world, whom, group).await?,
            );
            equal(&one.epoch().await?, &other.epoch().await?)?;
            equal(
                &one.epoch_authenticator().await?,
                &other.epoch_authenticator().await?,
            )
        }
        Step::Names { who, group, name } => {
            let found = group_of(world, who, group).await?.name().await?;
            equal(&found, name)
        }
        Step::Verdict { who, label, told } => verdict::expect(world, who, label, told).await,
        _ => Err(PlayError::Told("it is no assertion".to_owned())),
    }
}

/// Finds a group of this name, or creates it: a crash after the creation must not make another.
async fn created(client: &Client, name: &str) -> Result<GroupId, PlayError> {
    for group in client.conversations().list().await? {
        if group.name().await? == name {
            return Ok(group.id());
        }
    }
    Ok(client.conversations().new_group(name, &[]).await?.id())
}

async fn group_of(world: &mut World, who: &str, group: &str) -> Result<Group, PlayError> {
    let id = world.group(group)?;
    Ok(world.client(who).await?.conversations().group(id))
}

/// A change that is already in effect was made before the crash.
fn superseded<T>(result: Result<T, ClientError>) -> Result<(), PlayError> {
    match result {
        Ok(_) | Err(ClientError::Send(SendError::Superseded)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes new texts from the default consumer and acknowledges all of them.
///
/// - A text comes again only after a crash, and only the one that was not acknowledged then; a
///   power loss may take acknowledgements too.
async fn consume(world: &mut World, who: &str, count: usize) -> Result<(), PlayError> {
    let client = world.client(who).await?;
    let repeats = world.repeats(who);
    let handed = &mut world.handed;
    let mut consumer = client.messages().consume(Scope::All, Filter::all()).await?;
    while handed.in_step < count {
        let next = consumer.next().await?;
        let message = next.ok_or_else(|| PlayError::Told("the stream ended".to_owned()))?;
        if text_of(&message).is_none() {
            continue;
        }
        if handed.all.insert((who.to_owned(), message.id)) {
            handed.in_step += 1;
            continue;
        }
        let again = handed.again.entry(who.to_owned()).or_default();
        *again += 1;
        if *again > repeats {
            let told = "a text that was acknowledged was handed over again";
            return Err(PlayError::Told(told.to_owned()));
        }
    }
    consumer.finish().await?;
    Ok(())
}

async fn texts_of(world: &mut World, who: &str, group: &str) -> Result<Vec<String>, PlayError> {
    let id = group_of(world, who, group).await?.id();
    let messages = world.client(who).await?.engine().messages();
    let history = messages
        .history(Scope::from(id), Filter::all(), MAX_TEXTS)
        .await?;
    let mut found: Vec<&Message> = history.messages.iter().collect();
    found.sort_by_key(|message| message.number);
    Ok(found.into_iter().filter_map(text_of).collect())
}

fn text_of(message: &Message) -> Option<String> {
    if message.kind != MessageKind::Application {
        return None;
    }
    let content = EncodedContent::decode(message.content.clone()).ok()?;
    decode_text(&content).ok().map(str::to_owned)
}

/// Answers what a person has who has received all that there is.
async fn final_state(world: &mut World, who: &str) -> Result<PersonState, PlayError> {
    syncs_whole(world, who).await?;
    let mut state = PersonState {
        texts: BTreeMap::new(),
        active: BTreeMap::new(),
        verdicts: BTreeMap::new(),
    };
    let told = world.verdicts.clone();
    for ((_, label), told) in told.iter().filter(|((name, _), _)| name == who) {
        verdict::expect(world, who, label, told).await?;
        state.verdicts.insert(label.clone(), format!("{told:?}"));
    }
    let groups: Vec<String> = world.groups.keys().cloned().collect();
    for name in groups {
        let active = match group_of(world, who, &name).await?.is_active().await {
            Ok(active) => active,
            Err(ClientError::UnknownGroup) => continue,
            Err(error) => return Err(error.into()),
        };
        state.active.insert(name.clone(), active);
        let texts = texts_of(world, who, &name).await?;
        state.texts.insert(name, texts);
    }
    Ok(state)
}

/// Syncs for a while and tells whether nothing is left.
async fn syncs_whole(world: &mut World, who: &str) -> Result<bool, PlayError> {
    let client = world.client(who).await?;
    match client.sync_all_within(SYNC_IN_PART).await {
        Ok(_) => Ok(true),
        Err(SyncError::Incomplete(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn equal<T: PartialEq + std::fmt::Debug + ?Sized, U: PartialEq<T> + std::fmt::Debug + ?Sized>(
    found: &U,
    told: &T,
) -> Result<(), PlayError> {
    if *found == *told {
        return Ok(());
    }
    Err(PlayError::Told(format!("told {told:?}, found {found:?}")))
}
