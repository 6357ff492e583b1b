//! Whether a template loops over the content parts of a message, as vLLM finds out.
//!
//! vLLM's `_detect_content_format` looks in the syntax tree for a loop over `message['content']`, where
//! `message` is the variable of a loop over `messages` or over a variable assigned from it; or, since 0.19, for
//! a loop over any variable named `content`. Such a template gets lists of parts, any other plain texts.

use super::environment;
use minijinja::machinery::ast::{Expr, Stmt};
use minijinja::machinery::{self, ast};

/// What `message.content` is in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// One text.
    String,
    /// A list of `{"type": "text", "text": ...}`.
    OpenAi,
}

impl ContentFormat {
    /// The format that `source` wants; [`ContentFormat::String`] for one that cannot be parsed.
    pub fn of(source: &str) -> Self {
        let Ok(tree) = machinery::parse(source, "", environment::syntax()) else {
            return Self::String;
        };
        let mut nodes = Nodes::default();
        nodes.visit(&tree);
        if nodes.loops_over_content() {
            Self::OpenAi
        } else {
            Self::String
        }
    }
}

/// The loops and assignments of a template, wherever they stand.
#[derive(Default)]
struct Nodes<'t> {
    loops: Vec<&'t ast::ForLoop<'t>>,
    assignments: Vec<&'t ast::Set<'t>>,
}

impl<'t> Nodes<'t> {
    fn visit(&mut self, statement: &'t Stmt<'t>) {
        match statement {
            Stmt::Template(node) => self.visit_all(&node.children),
            Stmt::ForLoop(node) => {
                self.loops.push(node);
                self.visit_all(&node.body);
                self.visit_all(&node.else_body);
            }
            Stmt::IfCond(node) => {
                self.visit_all(&node.true_body);
                self.visit_all(&node.false_body);
            }
            Stmt::WithBlock(node) => self.visit_all(&node.body),
            Stmt::Set(node) => self.assignments.push(node),
            Stmt::SetBlock(node) => self.visit_all(&node.body),
            Stmt::AutoEscape(node) => self.visit_all(&node.body),
            Stmt::FilterBlock(node) => self.visit_all(&node.body),
            Stmt::Block(node) => self.visit_all(&node.body),
            Stmt::Macro(node) => self.visit_all(&node.body),
            Stmt::CallBlock(node) => self.visit_all(&node.macro_decl.body),
            _ => {}
        }
    }

    fn visit_all(&mut self, statements: &'t [Stmt<'t>]) {
        statements.iter().for_each(|statement| self.visit(statement));
    }

    fn loops_over_content(&self) -> bool {
        let lists = self.assigned_from("messages");
        let over_messages =
            |node: &&&ast::ForLoop<'_>| lists.iter().any(|list| is_access(&node.iter, list, None));
        let messages: Vec<_> = self
            .loops
            .iter()
            .filter(over_messages)
            .filter_map(|node| name(&node.target))
            .collect();
        self.loops.iter().any(|node| {
            name(&node.iter) == Some("content")
                || messages
                    .iter()
                    .any(|message| is_access(&node.iter, message, Some("content")))
        })
    }

    /// `variable` and the variables assigned from it, directly or not.
    fn assigned_from(&self, variable: &'t str) -> Vec<&'t str> {
        let mut names = vec![variable];
        let mut next = 0;
        while let Some(&from) = names.get(next) {
            next += 1;
            for node in self
                .assignments
                .iter()
                .filter(|node| is_access(&node.expr, from, None))
            {
                if let Some(to) = name(&node.target)
                    && !names.contains(&to)
                {
                    names.push(to);
                }
            }
        }
        names
    }
}

/// Whether the expression is the variable (or its `key`), filtered, tested or sliced at will.
fn is_access(expression: &Expr<'_>, variable: &str, key: Option<&str>) -> bool {
    match (expression, key) {
        (Expr::Filter(node), _) => node
            .expr
            .as_ref()
            .is_some_and(|inner| is_access(inner, variable, key)),
        (Expr::Test(node), _) => is_access(&node.expr, variable, key),
        (Expr::Slice(node), _) => is_access(&node.expr, variable, key),
        (Expr::GetAttr(node), Some(key)) => name(&node.expr) == Some(variable) && node.name == key,
        (Expr::GetItem(node), Some(key)) => {
            name(&node.expr) == Some(variable) && is_text(&node.subscript_expr, key)
        }
        (_, None) => name(expression) == Some(variable),
        _ => false,
    }
}

fn name<'t>(expression: &Expr<'t>) -> Option<&'t str> {
    match expression {
        Expr::Var(node) => Some(node.id),
        _ => None,
    }
}

fn is_text(expression: &Expr<'_>, text: &str) -> bool {
    matches!(expression, Expr::Const(node) if node.value.as_str() == Some(text))
}
