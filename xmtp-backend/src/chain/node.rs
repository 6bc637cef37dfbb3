//! The node of one chain, asked by JSON-RPC over HTTP.

use std::fmt;

use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore};

use crate::config::{Secret, check_address};
use crate::limits::{CHAIN_ANSWER_BYTES, CHAIN_ANSWER_TIME, CHAIN_QUESTIONS};

/// Reports why a chain gave no verdict. It shows nothing that the node said, nor where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The operator names no node for the chain.
    #[error("no node is named for the chain")]
    NoRoute,
    /// The node could not be reached, or broke off.
    #[error("the node can not be reached")]
    Unreachable,
    /// The node did not answer in time.
    #[error("the node did not answer in time")]
    TimedOut,
    /// The node answered with a failure of HTTP.
    #[error("the node answered with HTTP status {0}")]
    Http(u16),
    /// The node refused the question, with a code of JSON-RPC.
    #[error("the node refused the question with code {0}")]
    Refused(i64),
    /// The answer is larger than any answer may be.
    #[error("the answer of the node is too large")]
    TooLarge,
    /// The answer is none to the question.
    #[error("the answer of the node can not be read")]
    Malformed,
    /// The node does not know the block.
    #[error("the node does not have the block")]
    NoBlock,
    /// The node serves another chain.
    #[error("the node serves another chain than the one it is named for")]
    AnotherChain,
}

/// A block of a chain, as far as the rules ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Block {
    #[serde(deserialize_with = "quantity")]
    pub(super) number: u64,
    /// Seconds since 1970.
    #[serde(rename = "timestamp", deserialize_with = "quantity")]
    pub(super) time: u64,
}

/// The node of one chain.
pub(super) struct Node {
    chain_id: u64,
    address: Secret,
    client: Client,
    /// Whether the node has said that it serves this chain; it is asked before all else.
    serves_chain: OnceCell<()>,
    /// Room for questions. Each node has its own, so that one that is silent holds up no other.
    questions: Semaphore,
}

impl Node {
    /// Prepares to ask a node; nothing is sent yet.
    pub(super) fn new(chain_id: u64, address: Secret) -> Result<Self, &'static str> {
        check_address(address.expose())?;
        let client = Client::builder()
            .redirect(Policy::none())
            .timeout(CHAIN_ANSWER_TIME);
        // What stays on the machine does not pass a proxy.
        let client = match address.expose().starts_with("http://") {
            true => client.no_proxy(),
            false => client,
        };
        let client = client.build();
        Ok(Self {
            chain_id,
            address,
            client: client.map_err(|_| "can not be asked from this machine")?,
            serves_chain: OnceCell::new(),
            questions: Semaphore::new(CHAIN_QUESTIONS),
        })
    }

    /// Returns the newest block.
    pub(super) async fn newest_block(&self) -> Result<Block, Fault> {
        self.block_at("latest".to_owned()).await
    }

    /// Returns a block by its number.
    pub(super) async fn block(&self, number: u64) -> Result<Block, Fault> {
        self.block_at(tag(number)).await
    }

    /// Tells what the check answers at a block.
    pub(super) async fn holds(&self, check: &[u8], block: u64) -> Result<bool, Fault> {
        let data = format!("0x{}", hex::encode(check));
        let params = json!([{ "data": data }, tag(block)]);
        let answer: Option<String> = self.ask("eth_call", params).await?;
        match answer
            .as_deref()
            .and_then(|answer| answer.strip_prefix("0x"))
        {
            Some(word) if word == format!("{:064x}", 1) => Ok(true),
            Some(word) if word == format!("{:064x}", 0) => Ok(false),
            _ => Err(Fault::Malformed),
        }
    }

    async fn block_at(&self, tag: String) -> Result<Block, Fault> {
        let block: Option<Block> = self
            .ask("eth_getBlockByNumber", json!([tag, false]))
            .await?;
        block.ok_or(Fault::NoBlock)
    }

    /// Asks one question once there is room for it; `None` is the answer `null`.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<Option<T>, Fault> {
        // Nobody closes the semaphore.
        let room = self.questions.acquire().await;
        let _room = room.map_err(|_| Fault::TimedOut)?;
        let serves_chain = self.serves_chain.get_or_try_init(|| self.check_chain());
        serves_chain.await?;
        self.send(method, params).await
    }

    async fn check_chain(&self) -> Result<(), Fault> {
        let served: Option<Quantity> = self.send("eth_chainId", json!([])).await?;
        match served {
            Some(Quantity(served)) if served == self.chain_id => Ok(()),
            Some(_) => Err(Fault::AnotherChain),
            None => Err(Fault::Malformed),
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<Option<T>, Fault> {
        let question = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let request = self.client.post(self.address.expose()).json(&question);
        let response = request
            .send()
            .await
            .map_err(|error| transport_fault(&error))?;
        let status = response.status();
        if !status.is_success() {
            return Err(Fault::Http(status.as_u16()));
        }
        let body = bounded_body(response).await?;
        let answer: Answer<T> = serde_json::from_slice(&body).map_err(|_| Fault::Malformed)?;
        match answer.error {
            Some(refused) => Err(Fault::Refused(refused.code)),
            None => Ok(answer.result),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("chain_id", &self.chain_id)
            .finish_non_exhaustive()
    }
}

async fn bounded_body(mut response: Response) -> Result<Vec<u8>, Fault> {
    let mut body = Vec::new();
    loop {
        let part = response.chunk().await;
        let Some(part) = part.map_err(|error| transport_fault(&error))? else {
            return Ok(body);
        };
        if body.len() + part.len() > CHAIN_ANSWER_BYTES {
            return Err(Fault::TooLarge);
        }
        body.extend_from_slice(&part);
    }
}

fn transport_fault(error: &reqwest::Error) -> Fault {
    match error.is_timeout() {
        true => Fault::TimedOut,
        false => Fault::Unreachable,
    }
}

fn tag(block: u64) -> String {
    format!("0x{block:x}")
}

#[derive(Deserialize)]
struct Answer<T> {
    // An absent result is not the same as `null`, but it is no answer either way.
    #[serde(default = "none")]
    result: Option<T>,
    #[serde(default)]
    error: Option<Refused>,
}

fn none<T>() -> Option<T> {
    None
}

#[derive(Deserialize)]
struct Refused {
    code: i64,
}

#[derive(Deserialize)]
struct Quantity(#[serde(deserialize_with = "quantity")] u64);

/// Reads a number as nodes write it: `0x` and hex digits.
fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = text
        .strip_prefix("0x")
        .filter(|digits| !digits.starts_with('+'));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| D::Error::custom("no quantity"))
}
