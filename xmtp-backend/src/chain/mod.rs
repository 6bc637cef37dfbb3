//! Chains: what a smart contract wallet says about a signature.
//!
//! A wallet is asked by one call to its chain's node, at one block, and the answer is a verdict: it
//! accepts, or it does not. Everything else that can happen is a [`Fault`], which is never taken
//! for a verdict and never remembered. The rooms: `node` speaks to one chain, `check` writes the
//! call, `verdicts` remembers what was said about a block that the caller chose.
//!
//! An address of a node is a secret: it stands in no error and no log line.

mod check;
mod node;
#[cfg(test)]
mod tests;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, timeout, timeout_at};
use xmtp_identity::{AccountId, CollectedVerdicts, Identifier, ScwRequest, VerifierError};

use crate::config::{Config, ConfigError};
use crate::limits::{CHAIN_QUESTIONS_PER_CALL, CHAIN_TIME, WALLET_BLOCK_AGE_SECONDS};
use crate::telemetry::metrics;
use check::Check;
use node::{Block, Node};
use verdicts::{Key, Verdicts};

pub(crate) use node::Fault;

/// The namespace of the chains that are asked.
const NAMESPACE: &str = "eip155:";

/// Asks wallets on all chains that the operator names.
#[derive(Debug)]
pub(crate) struct Chains {
    nodes: BTreeMap<u64, Node>,
    check: Check,
    verdicts: Verdicts,
}

/// Asks whether a wallet accepts a signature.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) account: AccountId,
    /// The block to ask at; `None` is the newest one.
    pub(crate) block: Option<u64>,
    pub(crate) hash: [u8; 32],
    pub(crate) signature: Bytes,
}

/// What a wallet said, and at which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) is_valid: bool,
    pub(crate) block: u64,
}

impl Chains {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let mut nodes = BTreeMap::new();
        for (chain, address) in &config.chains {
            let refuse = |problem| ConfigError::new(format!("chains.{chain}"), problem);
            let number = chain.strip_prefix(NAMESPACE).map(str::parse);
            let Some(Ok(number)) = number else {
                return Err(refuse("must be named eip155: and the number of the chain"));
            };
            let node = Node::new(number, address.clone()).map_err(refuse)?;
            nodes.insert(number, node);
        }
        // A cache without room is one with room for a single verdict.
        let entries = NonZeroUsize::new(config.validation.max_scw_cache_entries as usize);
        let entries = entries.unwrap_or(NonZeroUsize::MIN);
        Ok(Self {
            nodes,
            check: Check::new(),
            verdicts: Verdicts::new(entries),
        })
    }

    /// Asks about each signature, in order.
    ///
    /// - Fails as a whole with the first fault, after [`CHAIN_TIME`] at the latest.
    /// - A signature without a block is judged at the newest one of its chain, the same for all of
    ///   them, and its verdict is not remembered.
    #[tracing::instrument(name = "scw.verify", skip_all)]
    pub(crate) async fn judge(&self, questions: &[Question]) -> Result<Vec<Judgement>, Fault> {
        let judged = timeout(CHAIN_TIME, self.judge_all(questions)).await;
        let judged = judged.unwrap_or(Err(Fault::TimedOut));
        judged.inspect_err(|fault| told("signatures were not judged", *fault))
    }

    async fn judge_all(&self, questions: &[Question]) -> Result<Vec<Judgement>, Fault> {
        for question in questions {
            self.node(question.account.chain_id())?;
        }
        let open = questions
            .iter()
            .filter(|question| question.block.is_none())
            .map(|question| question.account.chain_id());
        let newest = self.newest(open.collect()).await;
        let mut asked = Vec::with_capacity(questions.len());
        for question in questions {
            let newest = newest.get(&question.account.chain_id());
            asked.push(async move {
                let block = match (question.block, newest) {
                    (Some(block), _) => block,
                    (None, Some(newest)) => (*newest)?.number,
                    (None, None) => return Err(Fault::Malformed),
                };
                let is_valid = self.verdict(question, block).await?;
                Ok(Judgement { is_valid, block })
            });
        }
        let judged = stream::iter(asked).buffered(CHAIN_QUESTIONS_PER_CALL);
        judged.try_collect().await
    }

    /// Judges the signatures of an update that is to be stored for the first time.
    ///
    /// - A block beyond the newest one, or more than [`WALLET_BLOCK_AGE_SECONDS`] before it, is
    ///   refused for good.
    /// - A fault concerns the signatures of its chain only and can be asked about again.
    #[tracing::instrument(name = "scw.verify", skip_all)]
    pub(crate) async fn admit(&self, requests: Vec<ScwRequest>) -> CollectedVerdicts {
        let deadline = Instant::now() + CHAIN_TIME;
        let late = |_| Err(Fault::TimedOut);
        let chains = requests.iter().map(|request| request.account_id.chain_id());
        let newest = timeout_at(deadline, self.newest(chains.collect())).await;
        let newest = newest.unwrap_or_default();
        let mut asked = Vec::with_capacity(requests.len());
        for request in requests {
            let chain_id = request.account_id.chain_id();
            let newest = newest.get(&chain_id).copied();
            asked.push(async move {
                let verdict = async {
                    let newest = newest.unwrap_or(Err(Fault::TimedOut))?;
                    self.admit_one(&request, newest).await
                };
                let verdict = timeout_at(deadline, verdict).await.unwrap_or_else(late);
                (request, collected(chain_id, verdict))
            });
        }
        let judged = stream::iter(asked).buffered(CHAIN_QUESTIONS_PER_CALL);
        let judged: Vec<_> = judged.collect().await;
        judged.into_iter().collect()
    }

    async fn admit_one(&self, request: &ScwRequest, newest: Block) -> Result<Admission, Fault> {
        let number = request.block_number;
        if number > newest.number {
            return Ok(Admission::Refused("its block is beyond the newest one"));
        }
        let block = self
            .node(request.account_id.chain_id())?
            .block(number)
            .await?;
        let age = newest.time.saturating_sub(block.time);
        if age > WALLET_BLOCK_AGE_SECONDS {
            return Ok(Admission::Refused("its block is too old"));
        }
        let question = Question {
            account: request.account_id.clone(),
            block: Some(number),
            hash: request.hash,
            signature: request.signature.clone(),
        };
        let is_valid = self.verdict(&question, number).await?;
        Ok(Admission::Judged(is_valid))
    }

    /// Finds the newest block of each chain.
    async fn newest(&self, chains: BTreeSet<u64>) -> BTreeMap<u64, Result<Block, Fault>> {
        let mut asked = Vec::with_capacity(chains.len());
        for chain in chains {
            asked.push(async move {
                let newest = async { self.node(chain)?.newest_block().await };
                (chain, newest.await)
            });
        }
        let found = stream::iter(asked).buffered(CHAIN_QUESTIONS_PER_CALL);
        found.collect().await
    }

    /// Returns what the wallet says at `block`, from memory if the caller chose the block.
    async fn verdict(&self, question: &Question, block: u64) -> Result<bool, Fault> {
        let address = address(&question.account);
        let call = self
            .check
            .call(address, &question.hash, &question.signature);
        let Some(call) = call else {
            // No wallet can be asked about it, whatever the block.
            return Ok(false);
        };
        let key = question.block.map(|block| Key {
            chain_id: question.account.chain_id(),
            account: address,
            hash: question.hash,
            signature: verdicts::digest(&question.signature),
            block,
        });
        if let Some(known) = key.as_ref().and_then(|key| self.verdicts.get(key)) {
            metrics::wallet_verified("cached");
            return Ok(known);
        }
        let node = self.node(question.account.chain_id())?;
        let asked = node.holds(&call, block).await;
        metrics::wallet_verified(match asked {
            Ok(true) => "valid",
            Ok(false) => "invalid",
            Err(_) => "failed",
        });
        let is_valid = asked?;
        if let Some(key) = key {
            self.verdicts.put(key, is_valid);
        }
        Ok(is_valid)
    }

    fn node(&self, chain_id: u64) -> Result<&Node, Fault> {
        self.nodes.get(&chain_id).ok_or(Fault::NoRoute)
    }
}

/// What the rules of admission say about a signature of an update.
#[derive(Clone, Copy, Debug)]
enum Admission {
    Judged(bool),
    Refused(&'static str),
}

fn collected(chain_id: u64, verdict: Result<Admission, Fault>) -> Result<bool, VerifierError> {
    match verdict {
        Ok(Admission::Judged(is_valid)) => Ok(is_valid),
        Ok(Admission::Refused(cause)) => Err(VerifierError::Refused { chain_id, cause }),
        Err(fault) => {
            told("an update was not judged", fault);
            let cause = "the chain gave no verdict";
            Err(VerifierError::Retryable { chain_id, cause })
        }
    }
}

fn told(what: &'static str, fault: Fault) {
    tracing::warn!(cause = %fault, "{what}");
}

/// Returns the 20 bytes of an account's address.
fn address(account: &AccountId) -> [u8; 20] {
    let mut bytes = [0; 20];
    if let Identifier::Ethereum(address) = account.address() {
        let digits = address.as_str().trim_start_matches("0x");
        // An address that was parsed has exactly this form.
        let decoded = hex::decode_to_slice(digits, &mut bytes);
        debug_assert!(decoded.is_ok(), "a parsed address has 40 hex digits");
    }
    bytes
}
