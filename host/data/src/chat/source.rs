//! Rewrites a template where the engine's language differs from Jinja as transformers configures it:
//!
//! - `{% generation %}` becomes a call block ([`marks`]).
//! - An assignment to a namespace becomes a call of [`namespace::ASSIGN`].
//! - `x.items` that is not called becomes the filter [`super::methods::UNCALLED`]: in Python it is a method, even if `x` has such a key.
//! - String literals are written with the engine's escapes.
//! - `a % b` becomes the filter [`super::text::MODULO`], which also formats strings, and `a ~ b` the filter [`super::text::CONCAT`], which formats
//!   numbers as Python does.
//! - Comparisons other than equality, `in`, `*` and signs become filters ([`super::operators`]), and so do slices, the values that a loop iterates
//!   over, and those that are unpacked into several names ([`super::sequences`]).
//! - A macro with defaults, `varargs` or `kwargs` becomes one with plain parameters and a function that calls it ([`super::macros`]).

use super::super::marks;
use super::expression::expression;
use super::macros::MacroSignature;
use super::pieces::{Tag, TagToken, TemplatePiece, split};
use super::{namespace, sequences};

/// Maximum nesting of blocks; each `elif` counts as a level.
const DEEPEST_BLOCKS: usize = 128;

/// Variable for a value that is assigned to a namespace in several steps.
const ASSIGNED: &str = "assigned_in_passing";

/// Template in the engine's language.
pub(super) struct RewrittenTemplate {
    pub source: String,
    /// Whether the template marks the assistant's text.
    pub marked: bool,
}

/// Rewrites a template.
///
/// # Errors
/// If the template is too large or nested too deeply, or loads other templates.
pub(super) fn rewritten(source: &str) -> Result<RewrittenTemplate, String> {
    let mut writer = TemplateRewriter::default();
    let pieces = split(source)?;
    for (i, piece) in pieces.iter().enumerate() {
        match piece {
            TemplatePiece::Verbatim(text) => writer.source += text,
            TemplatePiece::Tag(tag) => writer.tag(tag, &pieces[i + 1..])?,
        }
    }
    Ok(RewrittenTemplate { source: writer.source, marked: writer.marked })
}

#[derive(Default)]
struct TemplateRewriter {
    source: String,
    marked: bool,
    /// Open blocks: the depth that each adds, and a statement to add after its end.
    blocks: Vec<(usize, Option<String>)>,
    depth: usize,
}

impl TemplateRewriter {
    /// Rewrites a tag, given what follows it.
    fn tag(&mut self, tag: &Tag<'_>, rest: &[TemplatePiece<'_>]) -> Result<(), String> {
        let Tag { open, tokens, space, close } = tag;
        let words: Vec<&str> = tokens.iter().map(|token| token.text).collect();
        let is_statement = open.starts_with("{%");
        let inside = match words.as_slice() {
            ["generation"] if is_statement => {
                self.marked = true;
                self.begin_block(None)?;
                tokens[0].space.to_owned() + &marks::call()
            }
            ["endgeneration"] if is_statement => {
                self.end_block();
                format!("{}endcall", tokens[0].space)
            }
            ["set", ..] if is_statement => self.set(tokens)?,
            ["for", ..] if is_statement => {
                self.begin_block(None)?;
                for_loop(tokens)
            }
            ["macro", ..] if is_statement => {
                let signature = MacroSignature::parse(tokens, rest);
                self.begin_block(signature.as_ref().map(MacroSignature::replacement))?;
                signature.map_or_else(|| expression(tokens), |signature| signature.declaration())
            }
            [end @ ("endset" | "endmacro"), ..] if is_statement => {
                let statement = self.end_block().map(|text| format!(" %}}{{% {text}"));
                format!("{}{end}", tokens[0].space) + &statement.unwrap_or_default()
            }
            [name, ..] if is_statement => {
                self.count(name, &words)?;
                expression(tokens)
            }
            _ => expression(tokens),
        };
        self.source.extend([open, inside.as_str(), space, close]);
        Ok(())
    }

    /// Rewrites an assignment, or the start of a block assignment.
    fn set(&mut self, tokens: &[TagToken<'_>]) -> Result<String, String> {
        let equals = tokens.iter().position(|token| token.text == "=");
        let end = equals.or_else(|| tokens.iter().position(|token| token.text == "|")).unwrap_or(tokens.len());
        let (targets, rest) = tokens.split_at(end);
        let dotted = |at: usize| match targets.get(at..at + 3)?.iter().map(|token| token.text).collect::<Vec<_>>()[..] {
            [name, ".", attribute] if is_name(name) && is_name(attribute) => Some((name.to_owned(), attribute.to_owned())),
            _ => None,
        };
        if equals.is_none() {
            let target = dotted(1).filter(|_| targets.len() == 4);
            let written = if target.is_some() { format!(" set {ASSIGNED}") } else { raw(targets) };
            self.begin_block(target.map(|(name, attribute)| assignment(&name, &attribute, ASSIGNED)))?;
            return Ok(written + &expression(rest));
        }
        let value = expression(&rest[1..]);
        if let Some((name, attribute)) = dotted(1).filter(|_| targets.len() == 4) {
            return Ok(format!(" {}", assignment(&name, &attribute, &value)));
        }
        // There are several targets; some may be attributes.
        let (mut written, mut later, mut at) = (String::new(), String::new(), 0);
        while at < targets.len() {
            if let Some((name, attribute)) = dotted(at) {
                let variable = format!("{ASSIGNED}_{at}");
                written += &format!("{}{variable}", targets[at].space);
                later += &format!(" %}}{{% {}", assignment(&name, &attribute, &variable));
                at += 3;
            } else {
                written += &raw(&targets[at..=at]);
                at += 1;
            }
        }
        let value = match sequences::shape(&targets[1..]) {
            Some(shape) => format!(" (({value}) | {}({shape}))", sequences::UNPACKED),
            None => value,
        };
        Ok(format!("{written}{}={value}{later}", rest[0].space))
    }

    /// Counts open blocks.
    fn count(&mut self, name: &str, words: &[&str]) -> Result<(), String> {
        match name {
            "if" | "call" | "filter" | "with" | "block" | "autoescape" => self.begin_block(None),
            "elif" => {
                if let Some((depth, _)) = self.blocks.last_mut() {
                    *depth += 1;
                    self.deepen()?;
                }
                Ok(())
            }
            "include" | "import" | "extends" => Err(format!("{{% {name} %}}: a chat template can't load other templates")),
            "from" if words.contains(&"import") => Err("{% from %}: a chat template can't load other templates".into()),
            _ if name.starts_with("end") => {
                self.end_block();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Counts a block, after whose end a statement may be added.
    fn begin_block(&mut self, later: Option<String>) -> Result<(), String> {
        self.blocks.push((1, later));
        self.deepen()
    }

    fn deepen(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > DEEPEST_BLOCKS {
            return Err(format!("it has more than {DEEPEST_BLOCKS} blocks within each other"));
        }
        Ok(())
    }

    fn end_block(&mut self) -> Option<String> {
        let (depth, later) = self.blocks.pop()?;
        self.depth -= depth;
        later
    }
}

/// Rewrites the start of a loop.
fn for_loop(tokens: &[TagToken<'_>]) -> String {
    let Some(at) = tokens.iter().position(|token| token.text == "in") else { return expression(tokens) };
    let (targets, rest) = tokens.split_at(at + 1);
    let (mut end, mut depth) = (rest.len(), 0_usize);
    for (i, token) in rest.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "if" if depth == 0 => end = end.min(i),
            "recursive" if i + 1 == rest.len() && i > 0 && rest[i - 1].text != "." => end = end.min(i),
            _ => {}
        }
    }
    let (values, rest) = rest.split_at(end);
    if values.is_empty() {
        return raw(tokens);
    }
    let filter = match sequences::shape(&targets[1..at]) {
        Some(shape) => format!("{}({shape})", sequences::EACH_UNPACKED),
        None => sequences::ITERATED.to_owned(),
    };
    format!("{} (({}) | {filter}){}", raw(targets), expression(values), expression(rest))
}

fn assignment(name: &str, attribute: &str, value: &str) -> String {
    format!("do {}({name}, {attribute:?}, ({value}))", namespace::ASSIGN)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Writes tokens unchanged.
fn raw(tokens: &[TagToken<'_>]) -> String {
    tokens.iter().flat_map(|token| [token.space, token.text]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(text: &str) -> String {
        rewritten(text).unwrap().source
    }

    /// Removes whitespace, which is insignificant in a tag.
    fn tight(text: &str) -> String {
        text.replace(' ', "")
    }

    #[test]
    fn assignments_to_namespaces_become_calls() {
        for (before, after) in [
            ("{%- set ns.x = a ~ 1 -%}", "{%-doassign(ns,\"x\",(([a,1]|concat)))-%}"),
            ("{% set x = 1 %}", "{%setx=1%}"),
            ("{% set a, ns.x = 1, 2 -%}", "{%seta,named_3=((1,2)|unpacked([0,0]))%}{%doassign(ns,\"x\",(named_3))-%}"),
            ("{% set ns.x %}a{% endset -%}", "{%setnamed%}a{%endset%}{%doassign(ns,\"x\",(named))-%}"),
            ("{% set ns.x | upper %}a{% endset %}", "{%setnamed|upper%}a{%endset%}{%doassign(ns,\"x\",(named))%}"),
            ("{% set x %}a{% endset %}", "{%setx%}a{%endset%}"),
        ] {
            let after = after
                .replace("assign", namespace::ASSIGN)
                .replace("named", ASSIGNED)
                .replace("concat", super::super::text::CONCAT);
            assert_eq!(tight(&source(before)), after, "{before}");
        }
    }

    #[test]
    fn loops_iterate_over_what_filters_return() {
        for (before, after) in [
            ("{% for m in a ~ b recursive %}", "{%formin((([a,b]|concat))|iterated)recursive%}"),
            ("{% for m in 1, 2 if m > 1 %}", "{%formin((1,2)|iterated)if([m,'>',1]|compared)%}"),
            ("{% for m in (a if b else c) -%}", "{%formin(((aifbelsec))|iterated)-%}"),
            ("{% for a, (b, c) in d %}", "{%fora,(b,c)in((d)|each_unpacked([0,[0,0]]))%}"),
            ("{% for (a, b) in d.recursive %}", "{%for(a,b)in((d.recursive)|each_unpacked([0,0]))%}"),
            ("{% for x in %}", "{%forxin%}"),
        ] {
            let after = after.replace("concat", super::super::text::CONCAT);
            assert_eq!(tight(&source(before)), after, "{before}");
        }
    }

    #[test]
    fn macros_with_defaults_get_a_caller() {
        let declared = "{%macrof(a,b)%}{%setb=((a)ifbismissing_argumentelseb)-%}{{b}}{%endmacro";
        let replaced = "{%setf=macro_caller(f,['a','b'],['b'],false,false)-%}";
        assert_eq!(tight(&source("{% macro f(a, b=a) -%}{{b}}{% endmacro -%}")), format!("{declared}%}}{replaced}"));
        let both = tight(&source("{% macro f() %}{{varargs}}{{kwargs}}{% endmacro %}{{kwargs}}"));
        assert!(both.starts_with("{%macrof(varargs,kwargs)%}") && both.contains("macro_caller(f,[],[],true,true)"), "{both}");
        for same in ["{% macro f(a, b) %}{% endmacro %}{{ varargs }}", "{% macro f(varargs) %}{{ varargs }}{% endmacro %}"] {
            assert_eq!(source(same), same);
        }
    }

    #[test]
    fn what_marks_the_assistants_text_becomes_a_call_block_outside_comments() {
        let RewrittenTemplate { source, marked } =
            rewritten("{# {% generation %} #}a{%- generation -%}b{%+ endgeneration %}{% if x %}{{ y }}{% endif %}{%").unwrap();
        assert!(marked);
        let call = marks::call();
        let expected =
            format!("{{# {{% generation %}} #}}a{{%- {call} -%}}b{{%+ endcall %}}{{% if x %}}{{{{ y }}}}{{% endif %}}{{%");
        assert_eq!(source, expected);
        assert!(!rewritten("{#- {% generation %} -#}{% set generation = 1 %}").unwrap().marked);
    }

    #[test]
    fn depth_and_other_templates_are_refused() {
        let error = |source: &str| rewritten(source).err().unwrap();
        for source in [
            "{% if true %}".repeat(20_000),
            "{% for x in y %}".repeat(200),
            format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(1000)),
        ] {
            assert!(error(&source).contains("blocks within each other") || error(&source).contains("tags"), "{}", error(&source));
        }
        assert!(rewritten(&"{% if x %}{% elif y %}{% endif %}".repeat(500)).is_ok());
        for source in ["{% include 'chat' %}", "{% import 'chat' as c %}", "{% extends 'a' %}", "{% from 'a' import b %}"] {
            assert!(error(source).contains("can't load other templates"), "{source}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_little_is_added(source in "[{}%#'\"\\\\a~(). |é\\[\\],+set-]{0,60}") {
            if let Ok(RewrittenTemplate { source: written, .. }) = rewritten(&source) {
                prop_assert!(written.len() <= 64 * source.len() + 64);
            }
        }
    }
}
