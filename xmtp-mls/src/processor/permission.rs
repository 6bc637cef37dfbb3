//! Whether whoever commits may change what the commit changes, by the rules before it.
//!
//! Roles and rules are those of the context before the commit. Groups in the extension form have
//! them in one set; what changes a group in the dictionary form is blocked before it comes here.

use std::collections::BTreeSet;

use xmtp_core::processor::Rejected;
use xmtp_proto::InboxId;
use xmtp_proto::content::{
    ConversationType, MembershipPolicy, MetadataPolicy, PermissionsUpdatePolicy, PolicySet,
    membership_policy, metadata_policy, permissions_update_policy,
};

use crate::group::{GroupContext, Policies};

/// What begins the name of an attribute that only super admins change, where no rule says more.
const PROTECTED: char = '_';

/// What an inbox is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Member,
    Admin,
    SuperAdmin,
}

impl Role {
    fn of(context: &GroupContext, inbox: &InboxId) -> Self {
        match (context.is_super_admin(inbox), context.is_admin(inbox)) {
            (true, _) => Self::SuperAdmin,
            (false, true) => Self::Admin,
            (false, false) => Self::Member,
        }
    }
}

/// Judges every change between two contexts of one form: of members, attributes, roles and rules.
///
/// A context in the dictionary form has other rules, which nothing here judges.
///
/// # Errors
/// When the rules before the commit do not allow `committer` one of the changes.
pub fn judge(
    before: &GroupContext,
    after: &GroupContext,
    committer: &InboxId,
) -> Result<(), Rejected> {
    let Policies::Set(rules) = &before.policies else {
        return Ok(());
    };
    let role = Role::of(before, committer);
    let is_allowed = members(before, after, rules, role)
        && attributes(before, after, rules, role)
        && roles(before, after, rules, role)
        && (after.policies == before.policies
            || allows(rules.update_permissions_policy.as_ref(), role));
    match is_allowed {
        true => Ok(()),
        false => Err(Rejected::PolicyDenied),
    }
}

/// Members come by one rule and go by another; a super admin never goes, and the pair of a DM may
/// always be complete.
fn members(before: &GroupContext, after: &GroupContext, rules: &PolicySet, role: Role) -> bool {
    let is_pair = |inbox: &InboxId| {
        before.conversation_type == ConversationType::Dm
            && before
                .dm
                .is_some_and(|(one, two)| *inbox == one || *inbox == two)
    };
    let mut added = after
        .members
        .keys()
        .filter(|inbox| !before.members.contains_key(inbox));
    let mut removed = before
        .members
        .keys()
        .filter(|inbox| !after.members.contains_key(inbox));
    added.all(|inbox| is_pair(inbox) || allows(rules.add_member_policy.as_ref(), role))
        && removed.all(|inbox| {
            !before.is_super_admin(inbox) && allows(rules.remove_member_policy.as_ref(), role)
        })
}

fn attributes(before: &GroupContext, after: &GroupContext, rules: &PolicySet, role: Role) -> bool {
    let names: BTreeSet<&String> = before
        .attributes
        .keys()
        .chain(after.attributes.keys())
        .collect();
    let mut changed = names
        .into_iter()
        .filter(|name| before.attributes.get(*name) != after.attributes.get(*name));
    changed.all(|name| match rules.update_metadata_policy.get(name) {
        Some(rule) => allows(Some(rule), role),
        None if name.starts_with(PROTECTED) => role == Role::SuperAdmin,
        None => role >= Role::Admin,
    })
}

/// Admins come and go by rules; the list of super admins is written by them alone, and one that
/// holds somebody never becomes empty.
fn roles(before: &GroupContext, after: &GroupContext, rules: &PolicySet, role: Role) -> bool {
    let is_added = !after.admins.is_subset(&before.admins);
    let is_removed = !before.admins.is_subset(&after.admins);
    let supers_change = before.super_admins != after.super_admins;
    let is_emptied = !before.super_admins.is_empty() && after.super_admins.is_empty();
    (!is_added || allows(rules.add_admin_policy.as_ref(), role))
        && (!is_removed || allows(rules.remove_admin_policy.as_ref(), role))
        && (!supers_change || (role == Role::SuperAdmin && !is_emptied))
}

/// A rule that is one of a few fixed ones, or made of others.
enum Shape<'r, R> {
    Base(i32),
    Every(&'r [R]),
    One(&'r [R]),
}

/// The three kinds of rules, which differ in the numbers of their fixed ones.
trait Rule: Sized {
    fn shape(&self) -> Option<Shape<'_, Self>>;

    /// Answers whether a fixed rule allows a role; `None` for a number that is no rule.
    fn base(number: i32, role: Role) -> Option<bool>;
}

/// A rule that is absent or malformed allows nothing.
fn allows<R: Rule>(rule: Option<&R>, role: Role) -> bool {
    rule.and_then(|rule| evaluate(rule, role)) == Some(true)
}

/// Evaluates a rule in the order of its parts: the first part that settles it, or is malformed,
/// ends it. The depth is that of a decoded message, so it is bounded.
fn evaluate<R: Rule>(rule: &R, role: Role) -> Option<bool> {
    let (parts, settles) = match rule.shape()? {
        Shape::Base(number) => return R::base(number, role),
        Shape::Every(parts) => (parts, false),
        Shape::One(parts) => (parts, true),
    };
    if parts.is_empty() {
        return None;
    }
    for part in parts {
        let found = evaluate(part, role)?;
        if found == settles {
            return Some(settles);
        }
    }
    Some(!settles)
}

impl Rule for MembershipPolicy {
    fn shape(&self) -> Option<Shape<'_, Self>> {
        Some(match self.kind.as_ref()? {
            membership_policy::Kind::Base(number) => Shape::Base(*number),
            membership_policy::Kind::AndCondition(all) => Shape::Every(&all.policies),
            membership_policy::Kind::AnyCondition(any) => Shape::One(&any.policies),
        })
    }

    fn base(number: i32, role: Role) -> Option<bool> {
        use membership_policy::BasePolicy as Base;
        match Base::try_from(number).ok()? {
            Base::Unspecified => None,
            Base::Allow => Some(true),
            Base::Deny => Some(false),
            Base::AllowIfAdminOrSuperAdmin => Some(role >= Role::Admin),
            Base::AllowIfSuperAdmin => Some(role == Role::SuperAdmin),
        }
    }
}

impl Rule for MetadataPolicy {
    fn shape(&self) -> Option<Shape<'_, Self>> {
        Some(match self.kind.as_ref()? {
            metadata_policy::Kind::Base(number) => Shape::Base(*number),
            metadata_policy::Kind::AndCondition(all) => Shape::Every(&all.policies),
            metadata_policy::Kind::AnyCondition(any) => Shape::One(&any.policies),
        })
    }

    fn base(number: i32, role: Role) -> Option<bool> {
        use metadata_policy::BasePolicy as Base;
        match Base::try_from(number).ok()? {
            Base::Unspecified => None,
            Base::Allow => Some(true),
            Base::Deny => Some(false),
            Base::AllowIfAdminOrSuperAdmin => Some(role >= Role::Admin),
            Base::AllowIfSuperAdmin => Some(role == Role::SuperAdmin),
        }
    }
}

impl Rule for PermissionsUpdatePolicy {
    fn shape(&self) -> Option<Shape<'_, Self>> {
        Some(match self.kind.as_ref()? {
            permissions_update_policy::Kind::Base(number) => Shape::Base(*number),
            permissions_update_policy::Kind::AndCondition(all) => Shape::Every(&all.policies),
            permissions_update_policy::Kind::AnyCondition(any) => Shape::One(&any.policies),
        })
    }

    fn base(number: i32, role: Role) -> Option<bool> {
        use permissions_update_policy::BasePolicy as Base;
        match Base::try_from(number).ok()? {
            Base::Unspecified => None,
            Base::Deny => Some(false),
            Base::AllowIfAdminOrSuperAdmin => Some(role >= Role::Admin),
            Base::AllowIfSuperAdmin => Some(role == Role::SuperAdmin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(number: i32) -> MembershipPolicy {
        MembershipPolicy {
            kind: Some(membership_policy::Kind::Base(number)),
        }
    }

    fn every(policies: &[MembershipPolicy]) -> MembershipPolicy {
        let policies = policies.to_vec();
        let all = membership_policy::AndCondition { policies };
        MembershipPolicy {
            kind: Some(membership_policy::Kind::AndCondition(all)),
        }
    }

    fn one(policies: &[MembershipPolicy]) -> MembershipPolicy {
        let policies = policies.to_vec();
        let any = membership_policy::AnyCondition { policies };
        MembershipPolicy {
            kind: Some(membership_policy::Kind::AnyCondition(any)),
        }
    }

    /// Allow, deny, admin, super admin, a number that is no rule, and no rule at all.
    const ALLOW: i32 = 1;
    const DENY: i32 = 2;
    const ADMIN: i32 = 3;
    const SUPER_ADMIN: i32 = 4;
    const UNKNOWN: i32 = 9;

    #[test]
    fn a_rule_allows_whom_it_says_and_a_malformed_one_nobody() {
        let rows = [
            (base(ALLOW), [true, true, true]),
            (base(DENY), [false, false, false]),
            (base(ADMIN), [false, true, true]),
            (base(SUPER_ADMIN), [false, false, true]),
            (base(0), [false; 3]),
            (base(UNKNOWN), [false; 3]),
            (MembershipPolicy::default(), [false; 3]),
            (every(&[]), [false; 3]),
            (one(&[]), [false; 3]),
            (every(&[base(ALLOW), base(ADMIN)]), [false, true, true]),
            (every(&[base(UNKNOWN), base(ALLOW)]), [false; 3]),
            (one(&[base(DENY), base(ADMIN)]), [false, true, true]),
            (one(&[base(UNKNOWN), base(ALLOW)]), [false; 3]),
            (one(&[base(ALLOW), base(UNKNOWN)]), [true; 3]),
            (
                one(&[every(&[base(ADMIN)]), base(DENY)]),
                [false, true, true],
            ),
        ];
        for (rule, expected) in rows {
            let roles = [Role::Member, Role::Admin, Role::SuperAdmin];
            let found = roles.map(|role| allows(Some(&rule), role));
            assert_eq!(found, expected, "{rule:?}");
        }
        assert!(!allows(None::<&MembershipPolicy>, Role::SuperAdmin));
    }
}
