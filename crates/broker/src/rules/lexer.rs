//! Splits an expression into tokens.

use super::compiled::SyntaxError;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Keyword(Keyword),
    /// A name, a `"quoted name"` or a `[delimited name]`.
    Name {
        text: Box<str>,
        /// Only a plain name can be a scope or a function.
        plain: bool,
    },
    /// `@name`, without the `@`.
    Parameter(Box<str>),
    Text(Box<str>),
    Integer(i64),
    Number(f64),
    Symbol(&'static str),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyword {
    And,
    Escape,
    Exists,
    False,
    In,
    Is,
    Like,
    Not,
    Null,
    Or,
    Remove,
    Set,
    True,
}

const KEYWORDS: [(&str, Keyword); 13] = [
    ("AND", Keyword::And),
    ("ESCAPE", Keyword::Escape),
    ("EXISTS", Keyword::Exists),
    ("FALSE", Keyword::False),
    ("IN", Keyword::In),
    ("IS", Keyword::Is),
    ("LIKE", Keyword::Like),
    ("NOT", Keyword::Not),
    ("NULL", Keyword::Null),
    ("OR", Keyword::Or),
    ("REMOVE", Keyword::Remove),
    ("SET", Keyword::Set),
    ("TRUE", Keyword::True),
];

/// Two characters before one: `<=` is not `<` and `=`.
const SYMBOLS: [&str; 17] = ["<>", "!=", "<=", ">=", "=", "<", ">", "(", ")", ",", ";", ".", "+", "-", "*", "/", "%"];

/// A token and the position of its first character, counted from 1.
pub(super) type PlacedToken = (Token, usize);

pub(super) fn tokenize(text: &str) -> Result<Vec<PlacedToken>, SyntaxError> {
    let mut lexer = Lexer { rest: text, position: 1 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_white_space();
        let position = lexer.position;
        let token = lexer.next_token()?;
        let end = token == Token::End;
        tokens.push((token, position));
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    rest: &'a str,
    position: usize,
}

impl<'a> Lexer<'a> {
    fn skip_white_space(&mut self) {
        let skipped = self.rest.len() - self.rest.trim_start().len();
        self.take(skipped);
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.position += taken.chars().count();
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|character| !belongs(character)).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn error(&self, text: impl Into<String>) -> SyntaxError {
        SyntaxError { position: self.position, text: text.into() }
    }

    fn next_token(&mut self) -> Result<Token, SyntaxError> {
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        match first {
            '\'' => Ok(Token::Text(self.quoted('\'', "a string")?)),
            '"' => Ok(Token::Name { text: self.name_in('"')?, plain: false }),
            '[' => Ok(Token::Name { text: self.name_in(']')?, plain: false }),
            '@' => {
                self.take(1);
                match self.take_while(is_name_character) {
                    "" => Err(self.error("expected the name of a parameter after `@`")),
                    name => Ok(Token::Parameter(name.into())),
                }
            }
            _ if first.is_ascii_digit() => self.number(),
            '.' if self.rest[1..].starts_with(|next: char| next.is_ascii_digit()) => self.number(),
            _ if first.is_alphabetic() => Ok(name_or_keyword(self.take_while(is_name_character))),
            _ => self.symbol(),
        }
    }

    fn name_in(&mut self, end: char) -> Result<Box<str>, SyntaxError> {
        let start = self.position;
        match self.quoted(end, "a name")? {
            name if name.is_empty() => Err(SyntaxError { position: start, text: "a name is empty".to_owned() }),
            name => Ok(name),
        }
    }

    /// The text up to `end`. A doubled `end` stands for itself.
    fn quoted(&mut self, end: char, what: &str) -> Result<Box<str>, SyntaxError> {
        let start = self.position;
        self.take(1);
        let mut text = String::new();
        loop {
            let Some(at) = self.rest.find(end) else {
                return Err(SyntaxError { position: start, text: format!("{what} has no end: expected `{end}`") });
            };
            text.push_str(self.take(at));
            self.take(1);
            if !self.rest.starts_with(end) {
                return Ok(text.into());
            }
            text.push(end);
            self.take(1);
        }
    }

    fn number(&mut self) -> Result<Token, SyntaxError> {
        let start = self.position;
        let invalid = |text: &str| SyntaxError { position: start, text: format!("`{text}` is not a valid number") };
        if let Some(digits) = self.rest.strip_prefix("0x").or(self.rest.strip_prefix("0X")) {
            let length = digits.find(|next| !is_name_character(next)).unwrap_or(digits.len());
            let text = self.take(2 + length);
            return i64::from_str_radix(&text[2..], 16).map(Token::Integer).map_err(|_| invalid(text));
        }
        let bytes = self.rest.as_bytes();
        let digits = |from: usize| from + bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut end = digits(0);
        let mut whole = true;
        if bytes.get(end) == Some(&b'.') {
            (end, whole) = (digits(end + 1), false);
        }
        if let Some(b'e' | b'E') = bytes.get(end) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + sign);
            if exponent > end + 1 + sign {
                (end, whole) = (exponent, false);
            }
        }
        // `1a` is neither a number nor a name.
        let attached = self.rest[end..].find(|next| !is_name_character(next)).unwrap_or(self.rest.len() - end);
        let text = self.take(end + attached);
        if attached > 0 {
            return Err(invalid(text));
        }
        match whole {
            true => text.parse().map(Token::Integer).map_err(|_| invalid(text)),
            false => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Token::Number(number)),
                _ => Err(invalid(text)),
            },
        }
    }

    fn symbol(&mut self) -> Result<Token, SyntaxError> {
        let found = SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol));
        let Some(symbol) = found else {
            let unexpected = self.rest.chars().next().unwrap_or_default();
            return Err(self.error(format!("`{unexpected}` is not expected here")));
        };
        self.take(symbol.len());
        Ok(Token::Symbol(symbol))
    }
}

fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn name_or_keyword(text: &str) -> Token {
    let keyword = KEYWORDS.iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
    match keyword {
        Some((_, keyword)) => Token::Keyword(*keyword),
        None => Token::Name { text: text.into(), plain: true },
    }
}
