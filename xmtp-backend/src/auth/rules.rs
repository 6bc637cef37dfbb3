//! What a token must say to be taken.

use super::key_set::KeySet;
use super::rejection::Rejection;
use super::token::{Claims, Token};
use crate::config::Auth;

/// The rules of the configuration.
///
/// - An empty list asks for nothing.
#[derive(Debug)]
pub(super) struct Rules {
    audiences: Vec<String>,
    issuers: Vec<String>,
    required_scopes: Vec<String>,
    /// What clocks may differ by, in seconds.
    leeway_seconds: f64,
}

impl Rules {
    pub(super) fn new(auth: &Auth) -> Self {
        Self {
            audiences: auth.audiences.clone(),
            issuers: auth.issuers.clone(),
            required_scopes: auth.required_scopes.clone(),
            leeway_seconds: auth.leeway_seconds.into(),
        }
    }

    /// Takes a token or says why not; `now` is in seconds since 1970.
    ///
    /// - Looks at no claim before the signature is found to be one of `keys`.
    pub(super) fn check(&self, token: &str, keys: &KeySet, now: f64) -> Result<(), Rejection> {
        let token = Token::parse(token)?;
        let key = keys.choose(token.kid.as_deref(), token.algorithm)?;
        if !key.verifies(token.message, token.signature) {
            return Err(Rejection::Untrusted);
        }
        self.check_claims(&token, now)
    }

    /// Checks what a token says, whoever signed it.
    pub(super) fn check_claims(&self, token: &Token<'_>, now: f64) -> Result<(), Rejection> {
        let claims = token.claims()?;
        self.check_time(&claims, now)?;
        self.check_origin(&claims)?;
        self.check_scope(&claims)
    }

    fn check_time(&self, claims: &Claims, now: f64) -> Result<(), Rejection> {
        let expires = claims.seconds("exp")?.ok_or(Rejection::Malformed)?;
        if now >= expires + self.leeway_seconds {
            return Err(Rejection::Expired);
        }
        let begins = claims.seconds("nbf")?;
        if begins.is_some_and(|begins| now + self.leeway_seconds < begins) {
            return Err(Rejection::NotYetValid);
        }
        Ok(())
    }

    fn check_origin(&self, claims: &Claims) -> Result<(), Rejection> {
        let is_one_of = |list: &[String], text: &str| list.iter().any(|one| one == text);
        if !self.audiences.is_empty() {
            let audiences = claims.texts("aud")?;
            let is_meant = |audience: &&str| is_one_of(&self.audiences, audience);
            audiences
                .iter()
                .find(|audience| is_meant(audience))
                .ok_or(Rejection::Audience)?;
        }
        if !self.issuers.is_empty() {
            let issuer = claims.text("iss")?;
            let is_known = issuer.is_some_and(|issuer| is_one_of(&self.issuers, issuer));
            is_known.then_some(()).ok_or(Rejection::Issuer)?;
        }
        Ok(())
    }

    fn check_scope(&self, claims: &Claims) -> Result<(), Rejection> {
        if self.required_scopes.is_empty() {
            return Ok(());
        }
        let scopes = claims.scopes()?;
        let has = |scope: &String| scopes.contains(&scope.as_str());
        match self.required_scopes.iter().all(has) {
            true => Ok(()),
            false => Err(Rejection::Scope),
        }
    }
}
