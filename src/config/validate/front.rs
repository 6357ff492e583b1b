//! The data port's front: keys and origins.

use super::super::diagnostic::Diagnostic;
use super::super::schema::Config;
use super::Check;
use crate::proxy::auth;

impl Check<'_> {
    pub(super) fn front(&mut self, config: &Config) {
        for (i, key) in config.auth.keys.iter().enumerate() {
            if auth::parse_digest(key).is_none() {
                let fault = Diagnostic::error("a key is given by its SHA-256")
                    .expected("64 hexadecimal digits")
                    .fix("run `printf %s KEY | sha256sum` and write what it prints, without the ` -`");
                self.report(&format!("auth.keys[{i}]"), fault);
            }
        }
        if let Some(file) = &config.auth.file
            && let Err(error) = auth::read_file(file)
        {
            self.report(
                "auth.file",
                Diagnostic::error(format!("{}: {error}", file.display())),
            );
        }
        for (i, origin) in config.cors.allow_origins.iter().enumerate() {
            let scheme_and_host = origin.split_once("://").map(|(_, host)| host);
            let plain = scheme_and_host.is_some_and(|host| !host.is_empty() && !host.contains('/'));
            if origin != "*" && !plain {
                let fault = Diagnostic::error(format!("`{origin}` is no origin"))
                    .expected("scheme and host, such as https://chat.example, or `*`");
                self.report(&format!("cors.allow_origins[{i}]"), fault);
            }
        }
    }
}
