// SPDX-License-Identifier: GPL-2.0-only
//! libipt is Debian's: libipt-dev 2.0, a shared library without pkg-config file.

fn main() {
    println!("cargo:rustc-link-lib=ipt");
    println!("cargo:rerun-if-changed=build.rs");
}
