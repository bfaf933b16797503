//! SPEX expressions, the values of parameters.

use super::tokenizer::{Token, TokenKind};
use super::{InputError, ParameterScope, SourcePosition};

/// A parser and evaluator of expressions, given as tokens.
pub(super) struct ExpressionParser<'t, 's, 'g> {
    pub(super) tokens: &'t [Token],
    pub(super) next: usize,
    pub(super) scope: &'s ParameterScope<'g>,
}

/// The deepest nesting of brackets and operators.
const DEEPEST: usize = 64;

/// The precedence level of `**`.
const POWER: usize = 5;

impl ExpressionParser<'_, '_, '_> {
    fn token(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn at(&self) -> SourcePosition {
        self.token().at
    }

    fn accept(&mut self, mark: &str) -> bool {
        let found = matches!(self.token().kind, TokenKind::Punctuation(own) if own == mark);
        self.next += usize::from(found);
        found
    }

    /// Parses one value or several: `[a, b, c]`, or `[from : to, step]`.
    pub(super) fn values(&mut self) -> Result<Vec<f64>, InputError> {
        if !self.accept("[") {
            return Ok(vec![self.value(0)?]);
        }
        let mut values = vec![self.value(0)?];
        if self.accept(":") {
            let at = self.at();
            let to = self.value(0)?;
            let step = if self.accept(",") { self.value(0)? } else { 1.0 };
            let count = ((to - values[0]) / step + 1e-9).floor();
            if !(step != 0.0 && (0.0..=10_000.0).contains(&count)) {
                return Err(at.error("a range has an end that its step leads to, in at most 10000 steps"));
            }
            let first = values[0];
            values = (0..=count as usize).map(|turn| first + step * turn as f64).collect();
        }
        while self.accept(",") {
            values.push(self.value(0)?);
        }
        let at = self.at();
        if self.accept("]") { Ok(values) } else { Err(at.error("`]` is missing")) }
    }

    /// Parses one value.
    fn value(&mut self, depth: usize) -> Result<f64, InputError> {
        let condition = self.binary(0, depth)?;
        if !self.accept("?") {
            return Ok(condition);
        }
        let yes = self.value(depth + 1)?;
        let at = self.at();
        if !self.accept(":") {
            return Err(at.error("`:` is missing: `condition ? this : that`"));
        }
        let no = self.value(depth + 1)?;
        Ok(if condition == 0.0 { no } else { yes })
    }

    /// Parses operators of at least this precedence level.
    fn binary(&mut self, level: usize, depth: usize) -> Result<f64, InputError> {
        const LEVELS: [&[&str]; 6] =
            [&["|"], &["&"], &["==", "!=", "<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"], &["**"]];
        if depth > DEEPEST {
            return Err(self.at().error("this is nested too deeply"));
        }
        let Some(marks) = LEVELS.get(level) else { return self.unary(depth) };
        let mut left = self.binary(level + 1, depth)?;
        loop {
            // In `a -1`, the scanner has taken the sign as part of the number.
            if level == 3
                && matches!(self.token().kind, TokenKind::Number(value, _) if value.is_sign_negative())
            {
                left += self.binary(level + 1, depth)?;
                continue;
            }
            let Some(mark) = marks.iter().find(|mark| self.accept(mark)) else { return Ok(left) };
            let right = self.binary(if level == POWER { level } else { level + 1 }, depth + 1)?;
            let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
            left = match *mark {
                "|" => truth(left != 0.0 || right != 0.0),
                "&" => truth(left != 0.0 && right != 0.0),
                "==" => truth(left == right),
                "!=" => truth(left != right),
                "<=" => truth(left <= right),
                ">=" => truth(left >= right),
                "<" => truth(left < right),
                ">" => truth(left > right),
                "+" => left + right,
                "-" => left - right,
                "*" => left * right,
                "/" => left / right,
                "%" => left % right,
                _ => left.powf(right),
            };
        }
    }

    fn unary(&mut self, depth: usize) -> Result<f64, InputError> {
        if depth > DEEPEST {
            return Err(self.at().error("this is nested too deeply"));
        }
        // A power binds more tightly than a sign.
        if self.accept("-") {
            return Ok(-self.binary(POWER, depth + 1)?);
        }
        if self.accept("!") {
            return Ok(if self.unary(depth + 1)? == 0.0 { 1.0 } else { 0.0 });
        }
        if self.accept("(") {
            let value = self.value(depth + 1)?;
            let at = self.at();
            return if self.accept(")") { Ok(value) } else { Err(at.error("`)` is missing")) };
        }
        let Token { kind, at } = self.token().clone();
        self.next += 1;
        match kind {
            TokenKind::Number(value, _) if value.is_sign_negative() && self.accept("**") => {
                Ok(-(-value).powf(self.binary(POWER, depth + 1)?))
            }
            TokenKind::Number(value, _) => Ok(value),
            TokenKind::Variable(name) => self.scope.value(&name, at),
            TokenKind::Word(name) => self.function(&name, at, depth),
            _ => {
                self.next -= 1;
                Err(at.error("expected a number, a parameter such as `$x`, or `(`"))
            }
        }
    }

    fn function(&mut self, name: &str, at: SourcePosition, depth: usize) -> Result<f64, InputError> {
        let function = FUNCTIONS.into_iter().find(|(own, _)| *own == name);
        let Some((_, function)) = function else {
            let names = FUNCTIONS.map(|(name, _)| name).join(", ");
            return Err(at.error(format!("no function `{name}`; there are {names}")));
        };
        if !self.accept("(") {
            return Err(self.at().error(format!("`(` is missing after `{name}`")));
        }
        let mut values = vec![self.value(depth + 1)?];
        while self.accept(",") {
            values.push(self.value(depth + 1)?);
        }
        let end = self.at();
        if !self.accept(")") {
            return Err(end.error("`)` is missing"));
        }
        let count = match function {
            MathFunction::One(_) => "one value",
            MathFunction::Two(_) => "two values",
            MathFunction::Many(_) => "",
        };
        match (function, values.as_slice()) {
            (MathFunction::One(of), [value]) => Ok(of(*value)),
            (MathFunction::Two(of), [one, other]) => Ok(of(*one, *other)),
            (MathFunction::Many(of), values) => Ok(values.iter().copied().reduce(of).unwrap_or_default()),
            _ => Err(at.error(format!("`{name}` is of {count}"))),
        }
    }
}

/// A function, by its number of arguments.
#[derive(Clone, Copy)]
enum MathFunction {
    One(fn(f64) -> f64),
    Two(fn(f64, f64) -> f64),
    /// Any number of arguments, folded in pairs.
    Many(fn(f64, f64) -> f64),
}

/// The functions of SPEX, and the others of a calculator. Angles are in radians.
const FUNCTIONS: [(&str, MathFunction); 19] = [
    ("abs", MathFunction::One(f64::abs)),
    ("ceil", MathFunction::One(f64::ceil)),
    ("floor", MathFunction::One(f64::floor)),
    ("round", MathFunction::One(f64::round)),
    ("exp", MathFunction::One(f64::exp)),
    ("log", MathFunction::One(f64::ln)),
    ("log10", MathFunction::One(f64::log10)),
    ("sqrt", MathFunction::One(f64::sqrt)),
    ("sin", MathFunction::One(f64::sin)),
    ("cos", MathFunction::One(f64::cos)),
    ("tan", MathFunction::One(f64::tan)),
    ("asin", MathFunction::One(f64::asin)),
    ("acos", MathFunction::One(f64::acos)),
    ("atan", MathFunction::One(f64::atan)),
    ("atan2", MathFunction::Two(f64::atan2)),
    ("pow", MathFunction::Two(f64::powf)),
    ("fmod", MathFunction::Two(|one, other| one % other)),
    ("min", MathFunction::Many(f64::min)),
    ("max", MathFunction::Many(f64::max)),
];

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tokenize;
    use super::*;

    fn values(text: &str) -> Result<Vec<f64>, InputError> {
        let tokens = tokenize(text)?;
        let mut scope = ParameterScope::default();
        scope.declare("x", vec![3.0]);
        ExpressionParser { tokens: &tokens, next: 0, scope: &scope }.values()
    }

    #[test]
    fn operators_bind_as_in_school() {
        for (text, value) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("2 ** 3 ** 2", 512.0),
            ("-$x + 5", 2.0),
            ("$x -1", 2.0),
            ("5 -2**2", 1.0),
            ("5-2**2*3", -7.0),
            ("-2 ** 2", -4.0),
            ("-$x ** 2", -9.0),
            ("2 ** -1", 0.5),
            ("2 ** -$x * 8", 1.0),
            ("10 - 4 - 3", 3.0),
            ("$x > 2 & $x < 4 ? 7 : 8", 7.0),
            ("sqrt(16) / 2", 2.0),
            ("!0", 1.0),
            ("pow(2, 3) + min(4, $x, 7)", 11.0),
            ("max(1) + max($x, 2)", 4.0),
            ("cos(0) + sin(0) + atan2(0, 1)", 1.0),
        ] {
            assert_eq!(values(text).unwrap(), [value], "{text}");
        }
        assert_eq!(values("[1, 2, $x * 2]").unwrap(), [1.0, 2.0, 6.0]);
        assert_eq!(values("[1 : 2, 0.25]").unwrap(), [1.0, 1.25, 1.5, 1.75, 2.0]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("$y", "`$y` has no value"),
            ("1 +", "expected a number"),
            ("(1", "`)` is missing"),
            ("rand(1)", "no function `rand`"),
            ("pow(2)", "`pow` is of two values"),
            ("sqrt(2, 3)", "`sqrt` is of one value"),
            ("min()", "expected a number"),
            ("[1 : 2, 0]", "a range"),
        ] {
            let trouble = values(text).unwrap_err();
            assert!(trouble.message.contains(why), "{text}: {trouble}");
        }
        let deep = "(".repeat(100_000);
        assert!(values(&deep).unwrap_err().message.contains("too deeply"));
    }
}
