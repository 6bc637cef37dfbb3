//! Keys of every kind, and updates that may break any rule: unlike the builder, a [`Draft`] lets
//! any key sign for any party.
#![allow(dead_code, unreachable_pub)]

use p256::ecdsa::signature::Signer as _;
use sha2::{Digest, Sha256};
use xmtp_identity::{
    AccountId, ApplyError, AssociationState, BrokenRule, Identifier, InstallationKey, LocalWallet,
    NoSmartContractWallets, ScwRequest, SignatureKind, Verifier, VerifierError, apply, inbox_id,
    signature_text,
};
use xmtp_proto::id::InboxId;
use xmtp_proto::identity as proto;

pub const SECOND: u64 = 1_000_000_000;

/// A key that can sign a text.
#[derive(Debug)]
pub enum Key {
    Wallet(LocalWallet),
    Installation(InstallationKey),
    Passkey(p256::ecdsa::SigningKey),
    Contract(AccountId),
}

pub fn wallet(seed: u8) -> Key {
    Key::Wallet(LocalWallet::from_secret(&[seed; 32]).unwrap())
}

pub fn installation(seed: u8) -> Key {
    Key::Installation(InstallationKey::from_seed(&[seed; 32]))
}

pub fn passkey(seed: u8) -> Key {
    Key::Passkey(p256::ecdsa::SigningKey::from_slice(&[seed; 32]).unwrap())
}

/// A smart contract wallet; the same seed on another chain has the same address.
pub fn contract(seed: u8, chain_id: u64) -> Key {
    let address = Identifier::ethereum_bytes([seed; 20]);
    Key::Contract(AccountId::new(chain_id, address).unwrap())
}

impl Key {
    pub fn identifier(&self) -> Identifier {
        match self {
            Self::Wallet(key) => key.identifier().clone(),
            Self::Installation(key) => key.identifier(),
            Self::Passkey(key) => {
                let point = key.verifying_key().to_encoded_point(true);
                let key = point.as_bytes().to_vec().into();
                Identifier::passkey(key, Some("example.org".to_owned())).unwrap()
            }
            Self::Contract(account) => account.address().clone(),
        }
    }

    pub fn chain_id(&self) -> Option<u64> {
        match self {
            Self::Contract(account) => Some(account.chain_id()),
            _ => None,
        }
    }

    pub fn sign(&self, text: &str) -> proto::Signature {
        match self {
            Self::Wallet(key) => key.sign_text(text).unwrap(),
            Self::Installation(key) => key.sign_text(text).unwrap(),
            Self::Passkey(key) => sign_with_passkey(key, text),
            Self::Contract(account) => sign_as_contract(account, text),
        }
    }
}

fn sign_with_passkey(key: &p256::ecdsa::SigningKey, text: &str) -> proto::Signature {
    let challenge = base64url(text.as_bytes());
    let client_data = format!(r#"{{"type":"webauthn.get","challenge":"{challenge}"}}"#);
    let authenticator_data = vec![5; 37];
    let hash = Sha256::digest(client_data.as_bytes());
    let signature: p256::ecdsa::Signature = key.sign(&[&authenticator_data[..], &hash].concat());
    let message = proto::RecoverablePasskeySignature {
        public_key: key
            .verifying_key()
            .to_encoded_point(true)
            .as_bytes()
            .to_vec()
            .into(),
        signature: signature.to_der().as_bytes().to_vec().into(),
        authenticator_data: authenticator_data.into(),
        client_data_json: client_data.into_bytes().into(),
    };
    wrap(SignatureKind::Passkey(message))
}

/// Signs as the wallets behind [`Chains`] accept it: with a hash of account and text.
fn sign_as_contract(account: &AccountId, text: &str) -> proto::Signature {
    let hash = xmtp_identity::personal_message_hash(text);
    wrap(SignatureKind::Erc6492(
        proto::SmartContractWalletSignature {
            account_id: account.text(),
            block_number: 7,
            signature: contract_signature(account, &hash),
        },
    ))
}

fn contract_signature(account: &AccountId, hash: &[u8; 32]) -> bytes::Bytes {
    Sha256::digest([account.text().as_bytes(), hash].concat())
        .to_vec()
        .into()
}

pub fn wrap(kind: SignatureKind) -> proto::Signature {
    proto::Signature {
        signature: Some(kind),
    }
}

/// Base64 by way of a string of bits.
pub fn base64url(bytes: &[u8]) -> String {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let digits = bits.as_bytes().chunks(6).map(|chunk| {
        let padded = format!("{:0<6}", std::str::from_utf8(chunk).unwrap());
        u8::from_str_radix(&padded, 2).unwrap()
    });
    digits
        .map(|digit| match digit {
            0..26 => char::from(b'A' + digit),
            26..52 => char::from(b'a' + digit - 26),
            52..62 => char::from(b'0' + digit - 52),
            62 => '-',
            _ => '_',
        })
        .collect()
}

/// A verifier that reaches every chain and accepts what [`Key::Contract`] signs.
#[derive(Debug)]
pub struct Chains;

impl Verifier for Chains {
    fn verify_smart_contract_wallet(&self, request: &ScwRequest) -> Result<bool, VerifierError> {
        Ok(request.signature == contract_signature(&request.account_id, &request.hash))
    }
}

/// An action and the keys that sign it, fit or not.
#[derive(Clone, Debug)]
pub enum Draft<'a> {
    Create {
        initial: Identifier,
        nonce: u64,
        by: &'a Key,
    },
    Add {
        member: Identifier,
        existing: &'a Key,
        new: &'a Key,
    },
    Revoke {
        target: Identifier,
        by: &'a Key,
    },
    ChangeRecovery {
        recovery: Identifier,
        by: &'a Key,
    },
}

pub fn create(by: &Key) -> Draft<'_> {
    Draft::Create {
        initial: by.identifier(),
        nonce: 1,
        by,
    }
}

pub fn add<'a>(existing: &'a Key, new: &'a Key) -> Draft<'a> {
    Draft::Add {
        member: new.identifier(),
        existing,
        new,
    }
}

pub fn revoke<'a>(by: &'a Key, target: &Key) -> Draft<'a> {
    Draft::Revoke {
        target: target.identifier(),
        by,
    }
}

pub fn change_recovery<'a>(by: &'a Key, recovery: &Key) -> Draft<'a> {
    Draft::ChangeRecovery {
        recovery: recovery.identifier(),
        by,
    }
}

impl Draft<'_> {
    fn to_proto(&self, sign: impl Fn(&Key) -> proto::Signature) -> proto::IdentityAction {
        use proto::identity_action::Kind;
        let kind_of =
            |owner: &Identifier| owner.identifier_kind().map_or(0, |kind| kind.to_proto());
        let kind = match self {
            Self::Create { initial, nonce, by } => Kind::CreateInbox(proto::CreateInbox {
                initial_identifier: initial.text(),
                nonce: *nonce,
                initial_identifier_signature: Some(sign(by)),
                initial_identifier_kind: kind_of(initial),
                relying_party: None,
            }),
            Self::Add {
                member,
                existing,
                new,
            } => Kind::Add(proto::AddAssociation {
                new_member_identifier: Some(member.to_proto()),
                existing_member_signature: Some(sign(existing)),
                new_member_signature: Some(sign(new)),
                relying_party: None,
            }),
            Self::Revoke { target, by } => Kind::Revoke(proto::RevokeAssociation {
                member_to_revoke: Some(target.to_proto()),
                recovery_identifier_signature: Some(sign(by)),
            }),
            Self::ChangeRecovery { recovery, by } => {
                Kind::ChangeRecoveryAddress(proto::ChangeRecoveryAddress {
                    new_recovery_identifier: recovery.text(),
                    existing_recovery_identifier_signature: Some(sign(by)),
                    new_recovery_identifier_kind: kind_of(recovery),
                    relying_party: None,
                })
            }
        };
        proto::IdentityAction { kind: Some(kind) }
    }
}

/// Signs drafts as one update of `inbox`.
pub fn update(inbox: InboxId, time: u64, drafts: &[Draft<'_>]) -> proto::IdentityUpdate {
    let assemble = |sign: &dyn Fn(&Key) -> proto::Signature| proto::IdentityUpdate {
        actions: drafts.iter().map(|draft| draft.to_proto(sign)).collect(),
        client_timestamp_ns: time,
        inbox_id: inbox.to_hex(),
    };
    let unsigned = assemble(&|_| wrap(SignatureKind::Erc191(Default::default())));
    let text = signature_text(&unsigned).unwrap();
    assemble(&|key| key.sign(&text))
}

/// One inbox and its log so far.
#[derive(Debug)]
pub struct Inbox {
    pub id: InboxId,
    pub state: Option<AssociationState>,
    pub log: Vec<proto::IdentityUpdate>,
    pub time: u64,
}

impl Inbox {
    /// An inbox that `owner` is yet to create.
    pub fn of(owner: &Key) -> Self {
        let id = inbox_id(&owner.identifier(), 1);
        Self {
            id,
            state: None,
            log: Vec::new(),
            time: 1_700_000_000 * SECOND,
        }
    }

    /// An inbox that `owner` created.
    pub fn created_by(owner: &Key) -> Self {
        let mut inbox = Self::of(owner);
        inbox.apply(&[create(owner)]).unwrap();
        inbox
    }

    /// Signs drafts for the next second.
    pub fn sign(&mut self, drafts: &[Draft<'_>]) -> proto::IdentityUpdate {
        self.time += SECOND;
        update(self.id, self.time, drafts)
    }

    /// Signs drafts and applies them.
    pub fn apply(&mut self, drafts: &[Draft<'_>]) -> Result<(), ApplyError> {
        let update = self.sign(drafts);
        self.apply_signed(update)
    }

    /// Applies a signed update; a failure leaves the inbox as it was.
    pub fn apply_signed(&mut self, update: proto::IdentityUpdate) -> Result<(), ApplyError> {
        self.state = Some(apply(self.state.as_ref(), &update, &Chains)?);
        self.log.push(update);
        Ok(())
    }

    pub fn state(&self) -> &AssociationState {
        self.state.as_ref().unwrap()
    }

    pub fn has(&self, key: &Key) -> bool {
        self.state().is_member(&key.identifier())
    }
}

/// Expects that the action at `position` breaks `rule`.
#[track_caller]
pub fn assert_breaks(outcome: Result<(), ApplyError>, position: usize, rule: BrokenRule) {
    assert_eq!(
        outcome,
        Err(ApplyError::DoesNotApply {
            action: position,
            rule
        })
    );
}

/// Applies with no chain in reach.
pub fn apply_offline(
    state: Option<&AssociationState>,
    update: &proto::IdentityUpdate,
) -> Result<AssociationState, ApplyError> {
    apply(state, update, &NoSmartContractWallets)
}
