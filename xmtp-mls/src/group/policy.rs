//! The rules a new group starts with, and telling which they are.

use std::collections::BTreeMap;

use xmtp_proto::content::membership_policy::{BasePolicy as Membership, Kind as MembershipKind};
use xmtp_proto::content::metadata_policy::{BasePolicy as Metadata, Kind as MetadataKind};
use xmtp_proto::content::permissions_update_policy::{
    BasePolicy as Permissions, Kind as PermissionsKind,
};
use xmtp_proto::content::{MembershipPolicy, MetadataPolicy, PermissionsUpdatePolicy, PolicySet};

use super::context::{Attribute, Policies};

/// The rules that a group starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Every member adds members and changes attributes.
    AllMembers,
    /// Admins do.
    AdminsOnly,
}

/// Attributes that a preset has a rule for.
const RULED: [Attribute; 7] = [
    Attribute::Name,
    Attribute::Description,
    Attribute::ImageUrl,
    Attribute::AppData,
    Attribute::DisappearFrom,
    Attribute::DisappearIn,
    Attribute::VersionFloor,
];

/// Makes the rules of a group.
pub fn preset_policies(preset: Preset) -> PolicySet {
    let (add, ordinary) = match preset {
        Preset::AllMembers => (Membership::Allow, Metadata::Allow),
        Preset::AdminsOnly => {
            let membership = Membership::AllowIfAdminOrSuperAdmin;
            (membership, Metadata::AllowIfAdminOrSuperAdmin)
        }
    };
    let rule = |attribute| match attribute {
        Attribute::VersionFloor => Metadata::AllowIfSuperAdmin,
        Attribute::DisappearFrom | Attribute::DisappearIn => Metadata::AllowIfAdminOrSuperAdmin,
        _ => ordinary,
    };
    let super_admin = permissions(Permissions::AllowIfSuperAdmin);
    PolicySet {
        add_member_policy: Some(membership(add)),
        remove_member_policy: Some(membership(Membership::AllowIfAdminOrSuperAdmin)),
        update_metadata_policy: rules(rule),
        add_admin_policy: Some(super_admin.clone()),
        remove_admin_policy: Some(super_admin.clone()),
        update_permissions_policy: Some(super_admin),
    }
}

/// Makes the rules of a DM: two members, no roles.
///
/// Unlike released clients we deny the version floor: with it one of the two could pause the DM
/// for the other.
pub(super) fn dm_policies() -> PolicySet {
    let rule = |attribute| match attribute {
        Attribute::VersionFloor => Metadata::Deny,
        _ => Metadata::Allow,
    };
    let deny = permissions(Permissions::Deny);
    PolicySet {
        add_member_policy: Some(membership(Membership::Deny)),
        remove_member_policy: Some(membership(Membership::Deny)),
        update_metadata_policy: rules(rule),
        add_admin_policy: Some(deny.clone()),
        remove_admin_policy: Some(deny.clone()),
        update_permissions_policy: Some(deny),
    }
}

/// Tells whether rules keep members and admins as they are for good, as those of a DM do. A registry
/// is judged by its own rules elsewhere.
pub fn is_closed(policies: &Policies) -> bool {
    let Policies::Set(found) = policies else {
        return true;
    };
    let expected = dm_policies();
    found.add_member_policy == expected.add_member_policy
        && found.remove_member_policy == expected.remove_member_policy
        && found.add_admin_policy == expected.add_admin_policy
        && found.remove_admin_policy == expected.remove_admin_policy
}

/// Tells which preset the rules of a group are, `None` when they are its own.
///
/// Compared are the rules for members, admins and permissions, and those of the attributes that
/// the group has a rule for.
pub fn preset_of(policies: &PolicySet) -> Option<Preset> {
    [Preset::AllMembers, Preset::AdminsOnly]
        .into_iter()
        .find(|preset| {
            let expected = preset_policies(*preset);
            let fixed = policies.add_member_policy == expected.add_member_policy
                && policies.remove_member_policy == expected.remove_member_policy
                && policies.add_admin_policy == expected.add_admin_policy
                && policies.remove_admin_policy == expected.remove_admin_policy
                && policies.update_permissions_policy == expected.update_permissions_policy;
            let named = &policies.update_metadata_policy;
            fixed
                && named
                    .iter()
                    .all(|(name, rule)| expected.update_metadata_policy.get(name) == Some(rule))
        })
}

fn rules(rule: impl Fn(Attribute) -> Metadata) -> BTreeMap<String, MetadataPolicy> {
    let named = RULED.map(|attribute| {
        let kind = Some(MetadataKind::Base(rule(attribute).into()));
        (attribute.name().to_owned(), MetadataPolicy { kind })
    });
    named.into()
}

fn membership(base: Membership) -> MembershipPolicy {
    MembershipPolicy {
        kind: Some(MembershipKind::Base(base.into())),
    }
}

fn permissions(base: Permissions) -> PermissionsUpdatePolicy {
    PermissionsUpdatePolicy {
        kind: Some(PermissionsKind::Base(base.into())),
    }
}
