//! Publish.
//!
//! The steps, in order: read every envelope and apply the bounds of the request; collapse
//! envelopes that are one; ask which are stored; check the rest without a lock, wallets on their
//! chains included; let the store
//! decide under its lock, where a stored envelope and a moved identity log outweigh what was found
//! before.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message;
use tonic::Status;
use xmtp_identity::CollectedVerdicts;
use xmtp_proto::backend::v1::{
    ClientEnvelope, PublishRequest, PublishResponse, RetentionConfiguration,
};
use xmtp_proto::id::{Topic, TopicKind};
use xmtp_proto::identity::IdentityUpdate;

use super::Services;
use super::status::{
    Failure, at_fault, broken, of_publish, of_read, outgoing, refused, unavailable,
};
use super::wire::wire_meta;
use crate::hooks::{Call, Point};
use crate::store::{IdentityHistory, IdentityWrite, Meta, PreparedEnvelope, Reason, Refusal};
use crate::telemetry::{metrics, step};
use crate::validate::{
    Bounds, Check, IdentityVerdict, Parsed, check_key_package, check_update, never_expires, parse,
};

const NANOSECONDS: u64 = 1_000_000_000;

/// The envelopes of a request, each once.
#[derive(Debug, Default)]
struct Distinct {
    envelopes: Vec<Parsed>,
    /// For each distinct envelope, where it first stands in the request.
    first_index: Vec<usize>,
    /// For each envelope of the request, which distinct one it is.
    place: Vec<usize>,
    /// The first envelope that can never be stored; those after it were not read.
    unreadable: Option<(usize, Refusal)>,
}

impl Services {
    /// Stores envelopes, all or none.
    ///
    /// - Returns one record per envelope, in order.
    /// - An envelope that is stored already succeeds with the record it has.
    pub async fn publish(&self, request: PublishRequest) -> Result<PublishResponse, Status> {
        self.begin(Call::Publish).await?;
        self.check_request_size(&request)?;
        let read = async { self.read_request(&request.envelopes) };
        let distinct = step!("publish.parse_publish", read).await;
        self.check_topics(&distinct)?;
        if request.envelopes.is_empty() {
            return Ok(PublishResponse::default());
        }
        let metas =
            tokio::time::timeout(self.inner.publish_time, self.store_distinct(&distinct)).await;
        let metas =
            metas.map_err(|_| Failure::PublishTimedOut.status("the publish took too long"))??;
        self.reach(Point::Committed).await?;
        let metas = distinct
            .place
            .iter()
            .map(|place| wire_meta(&metas[*place]))
            .collect();
        outgoing(
            PublishResponse {
                envelope_metas: metas,
            },
            &self.inner.limits,
        )
    }

    fn check_request_size(&self, request: &PublishRequest) -> Result<(), Status> {
        if request.encoded_len() as u64 <= self.inner.limits.max_request_bytes {
            return Ok(());
        }
        let message = "the request is larger than limits.max_request_bytes";
        Err(refused(
            Refusal {
                reason: Reason::TooLarge,
                message,
            },
            None,
        ))
    }

    fn check_topics(&self, distinct: &Distinct) -> Result<(), Status> {
        let topics: HashSet<Topic> = distinct.envelopes.iter().map(|row| row.key.topic).collect();
        if topics.len() <= self.inner.limits.max_publish_topics as usize {
            return Ok(());
        }
        let message = "the request has more topics than limits.max_publish_topics";
        Err(refused(
            Refusal {
                reason: Reason::TooLarge,
                message,
            },
            None,
        ))
    }

    fn read_request(&self, envelopes: &[ClientEnvelope]) -> Distinct {
        let bounds = Bounds {
            max_envelope_bytes: self.inner.limits.max_envelope_bytes,
            max_scw_signatures: self.inner.limits.max_scw_signatures,
        };
        let mut distinct = Distinct::default();
        let (mut keys, mut inboxes) = (HashMap::new(), HashSet::new());
        for (index, envelope) in envelopes.iter().enumerate() {
            let parsed = match parse(envelope, &bounds) {
                Ok(parsed) => parsed,
                Err(refusal) => {
                    distinct.unreadable = Some((index, refusal));
                    break;
                }
            };
            let place = match keys.entry(parsed.key) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(_) if is_second_update(&parsed, &mut inboxes) => {
                    distinct.unreadable = Some((index, SECOND_UPDATE));
                    break;
                }
                Entry::Vacant(place) => {
                    distinct.envelopes.push(parsed);
                    distinct.first_index.push(index);
                    *place.insert(distinct.envelopes.len() - 1)
                }
            };
            distinct.place.push(place);
        }
        distinct
    }

    /// Stores what is not stored yet and returns the record of each distinct envelope.
    async fn store_distinct(&self, distinct: &Distinct) -> Result<Vec<Meta>, Status> {
        let mut metas = self.known(distinct).await?;
        let new: Vec<usize> = (0..metas.len())
            .filter(|place| metas[*place].is_none())
            .collect();
        let mut prepared = Vec::with_capacity(new.len());
        for place in &new {
            let parsed = &distinct.envelopes[*place];
            let checked = step!("publish.validate_publish", self.check(parsed)).await?;
            prepared.push(self.prepare(parsed, checked));
        }
        if let Some((index, refusal)) = distinct.unreadable {
            // Nothing will be stored; what is left to say is which refusal is the lowest.
            let lower = new.iter().zip(&prepared).find_map(|(place, row)| {
                row.refused
                    .map(|refusal| (distinct.first_index[*place], refusal))
            });
            let (index, refusal) = lower.unwrap_or((index, refusal));
            return Err(refused(refusal, Some(index)));
        }
        let duplicates = distinct.place.len() - new.len();
        metrics::envelopes_published("duplicate", duplicates as u64);
        if !new.is_empty() {
            let stored = self.inner.store.publish(prepared);
            let stored = step!("db.commit_publish", stored).await;
            let index = |position: usize| distinct.first_index[new[position]];
            let stored = stored.map_err(|error| of_publish(error, index))?;
            metrics::envelopes_published("stored", new.len() as u64);
            for (place, meta) in new.iter().zip(stored) {
                metas[*place] = Some(meta);
            }
        }
        Ok(metas.into_iter().flatten().collect())
    }

    /// Asks which envelopes are stored, where that decides what is checked. The store finds out by
    /// itself what it has.
    async fn known(&self, distinct: &Distinct) -> Result<Vec<Option<Meta>>, Status> {
        let plain = |row: &Parsed| matches!(row.check, Check::None);
        if distinct.envelopes.iter().all(plain) {
            return Ok(vec![None; distinct.envelopes.len()]);
        }
        let keys = distinct.envelopes.iter().map(|row| row.key).collect();
        self.inner.store.existing(keys).await.map_err(of_read)
    }

    /// Checks what depends on time or on what else is stored.
    async fn check(&self, parsed: &Parsed) -> Result<Checked, Status> {
        match &parsed.check {
            Check::None => Ok(Checked::default()),
            Check::KeyPackage(package) => {
                let (package, now_ns) = (package.clone(), self.inner.clock.now_ns());
                let verdict = blocking(move || check_key_package(*package, now_ns)).await?;
                Ok(Checked {
                    refused: verdict.err(),
                    identity: None,
                })
            }
            Check::IdentityUpdate(update) => {
                let history = self.inner.store.identity_history(parsed.key.topic).await;
                let history = Arc::new(history.map_err(of_read)?);
                let mut verdict = judged(update, &history, CollectedVerdicts::new()).await?;
                if let IdentityVerdict::Unverified(requests) = verdict {
                    let verdicts = self.inner.chains.admit(requests).await;
                    verdict = judged(update, &history, verdicts).await?;
                }
                self.identity_checked(verdict, &history)
            }
        }
    }

    fn identity_checked(
        &self,
        verdict: IdentityVerdict,
        history: &IdentityHistory,
    ) -> Result<Checked, Status> {
        let (changes, refused) = match verdict {
            IdentityVerdict::Applies(changes) => (changes, None),
            IdentityVerdict::Refused(refusal) => (Vec::new(), Some(refusal)),
            IdentityVerdict::Unverified(_) => return Err(unavailable()),
            IdentityVerdict::Broken => return Err(broken("a stored identity log does not replay")),
        };
        let max_entries = self.inner.limits.max_identity_entries;
        let identity = IdentityWrite {
            expected_head: history.head,
            max_entries,
            changes,
        };
        Ok(Checked {
            refused,
            identity: Some(identity),
        })
    }

    fn prepare(&self, parsed: &Parsed, checked: Checked) -> PreparedEnvelope {
        let kind = parsed.key.topic.kind();
        let forever = never_expires(kind, parsed.is_commit_or_proposal);
        let retention = self.inner.configuration.retention.unwrap_or_default();
        PreparedEnvelope {
            key: parsed.key,
            payload: parsed.payload.clone(),
            is_commit_or_proposal: parsed.is_commit_or_proposal,
            retention_ns: (!forever).then(|| retention_ns(&retention, kind)),
            identity: checked.identity,
            refused: checked.refused,
        }
    }
}

/// What the checks found about one envelope.
#[derive(Debug, Default)]
struct Checked {
    refused: Option<Refusal>,
    identity: Option<IdentityWrite>,
}

const SECOND_UPDATE: Refusal = Refusal {
    reason: Reason::InvalidIdentityUpdate,
    message: "the request has two different updates of one inbox",
};

fn is_second_update(parsed: &Parsed, inboxes: &mut HashSet<Topic>) -> bool {
    matches!(parsed.check, Check::IdentityUpdate(_)) && !inboxes.insert(parsed.key.topic)
}

fn retention_ns(retention: &RetentionConfiguration, kind: TopicKind) -> u64 {
    let seconds = match kind {
        TopicKind::Welcome => retention.welcome_seconds,
        TopicKind::KeyPackage => retention.key_package_seconds,
        TopicKind::Group | TopicKind::Identity | TopicKind::CommitLog => {
            retention.group_message_seconds
        }
    };
    seconds.saturating_mul(NANOSECONDS)
}

/// Applies an update to the log of its inbox, with what wallets have said.
async fn judged(
    update: &IdentityUpdate,
    history: &Arc<IdentityHistory>,
    verdicts: CollectedVerdicts,
) -> Result<IdentityVerdict, Status> {
    let (update, history) = (update.clone(), history.clone());
    blocking(move || check_update(&update, &history, &verdicts)).await
}

/// Runs work that computes for long on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| at_fault())
}
