// SPDX-License-Identifier: GPL-2.0-only
//! Enums whose numbers or names appear in files.

/// Variants with their numbers; `from_number` finds them.
macro_rules! numbered {
    ($(#[$of:meta])* pub enum $name:ident: $number:ident { $($(#[$doc:meta])* $variant:ident = $n:literal,)+ }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($number)]
        pub enum $name {
            $($(#[$doc])* $variant = $n,)+
        }

        impl $name {
            pub fn from_number(number: $number) -> Option<Self> {
                match number {
                    $($n => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

/// Variants with their names, numbered from 0 on.
macro_rules! named {
    ($(#[$of:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident $text:literal,)+ }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            pub const NAMES: &'static [&'static str] = &[$($text,)+];

            pub fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }
    };
}

pub(crate) use {named, numbered};
