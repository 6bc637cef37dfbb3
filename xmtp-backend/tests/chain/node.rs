//! A real node of a chain, and what tests do on it.

use std::path::PathBuf;
use std::process::Stdio;

use alloy_primitives::{Address, B256, keccak256};
use alloy_sol_types::SolValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::common::PATIENCE;

/// The environment variable that names the program of the node.
const PROGRAM: &str = "XMTP_ANVIL";

/// What the node prints once it listens.
const LISTENING: &str = "Listening on ";

/// The chain that the node serves.
pub(crate) const CHAIN: u64 = 31_337;

/// An account of the node that pays.
const PAYER: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

/// A node in a process of its own, ended with this value.
pub(crate) struct Anvil {
    pub(crate) url: String,
    _process: Child,
}

/// Finds the program of the node; without it there is nothing to test, which only CI forbids.
#[allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what was not tested"
)]
pub(crate) fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM) {
        return Some(program.into());
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "{PROGRAM} must name the program of anvil"
    );
    eprintln!("NOT TESTED: {PROGRAM} does not name the program of anvil");
    None
}

impl Anvil {
    /// Starts a node on a free port, unless its program is missing.
    pub(crate) async fn start() -> Option<Self> {
        let mut command = Command::new(program()?);
        command.args(["--port", "0", "--chain-id", &CHAIN.to_string()]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.kill_on_drop(true).spawn().expect("the node starts");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let listening = async {
            loop {
                let line = lines.next_line().await.expect("its output is read");
                let line = line.expect("it listens before it ends");
                if let Some(address) = line.strip_prefix(LISTENING) {
                    return address.to_owned();
                }
            }
        };
        let address = timeout(PATIENCE, listening)
            .await
            .expect("it listens in time");
        // A node that can not print stops.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Some(Self {
            url: format!("http://{address}"),
            _process: process,
        })
    }

    /// Asks the node itself.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        let question = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let client = reqwest::Client::builder()
            .no_proxy()
            .build()
            .expect("a client");
        let request = client.post(&self.url).json(&question).send();
        let answer = timeout(PATIENCE, request)
            .await
            .expect("in time")
            .expect("an answer");
        let mut answer: Value = answer.json().await.expect("JSON");
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Sends a transaction, which makes a block; returns its receipt.
    async fn send(&self, to: Option<Address>, data: Vec<u8>) -> Value {
        let mut transaction = json!({ "from": PAYER, "data": hex_text(&data) });
        if let Some(to) = to {
            transaction["to"] = json!(to.to_string());
        }
        let hash = self.ask("eth_sendTransaction", json!([transaction])).await;
        // The node may answer before the block is made.
        let mined = async {
            loop {
                let receipt = self.ask("eth_getTransactionReceipt", json!([hash])).await;
                if !receipt.is_null() {
                    return receipt;
                }
            }
        };
        let receipt = timeout(PATIENCE, mined).await.expect("it is mined in time");
        assert_eq!(receipt["status"], "0x1", "{receipt}");
        receipt
    }

    /// Deploys a contract of the folder of contracts.
    pub(crate) async fn deploy(&self, code: &str, arguments: impl SolValue) -> Address {
        let mut data = hex::decode(code.trim()).expect("compiled code");
        data.extend(arguments.abi_encode());
        let receipt = self.send(None, data).await;
        let address = receipt["contractAddress"].as_str().expect("an address");
        address.parse().expect("an address")
    }

    pub(crate) async fn owned_wallet(&self, owner: Address, waiting: bool) -> Address {
        let code = include_str!("../../contracts/OwnedWallet.hex");
        self.deploy(code, (owner, waiting)).await
    }

    pub(crate) async fn odd_wallet(&self, way: u64) -> Address {
        let code = include_str!("../../contracts/OddWallet.hex");
        self.deploy(code, alloy_primitives::U256::from(way)).await
    }

    pub(crate) async fn factory(&self) -> Address {
        let code = include_str!("../../contracts/WalletFactory.hex");
        self.deploy(code, ()).await
    }

    pub(crate) async fn change_owner(&self, wallet: Address, owner: Address) {
        self.send(Some(wallet), call("change(address)", owner))
            .await;
    }

    /// Returns where a factory would deploy a wallet.
    pub(crate) async fn address_of(&self, factory: Address, owner: Address, salt: B256) -> Address {
        let data = hex_text(&call("addressOf(address,bytes32)", (owner, salt)));
        let answer = self.ask(
            "eth_call",
            json!([{ "to": factory.to_string(), "data": data }, "latest"]),
        );
        let word: B256 = answer
            .await
            .as_str()
            .and_then(|word| word.parse().ok())
            .expect("a word");
        Address::from_word(word)
    }

    pub(crate) async fn has_code(&self, account: Address) -> bool {
        self.ask("eth_getCode", json!([account.to_string(), "latest"]))
            .await
            != "0x"
    }

    pub(crate) async fn head(&self) -> u64 {
        let number = self.ask("eth_blockNumber", json!([])).await;
        let digits = number.as_str().expect("a number").trim_start_matches("0x");
        u64::from_str_radix(digits, 16).expect("a number")
    }

    /// Makes a block so many seconds after the newest one.
    pub(crate) async fn mine_after(&self, seconds: u64) {
        let newest = self
            .ask("eth_getBlockByNumber", json!(["latest", false]))
            .await;
        let time = newest["timestamp"]
            .as_str()
            .expect("a time")
            .trim_start_matches("0x");
        let time = u64::from_str_radix(time, 16).expect("a time") + seconds;
        self.ask("evm_setNextBlockTimestamp", json!([time])).await;
        self.ask("evm_mine", json!([])).await;
    }
}

/// Encodes a call of a function by its signature.
pub(crate) fn call(function: &str, arguments: impl SolValue) -> Vec<u8> {
    let selector = keccak256(function);
    [&selector[..4], &arguments.abi_encode()].concat()
}

fn hex_text(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}
