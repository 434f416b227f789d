package editor

import "github.com/outboxgen/outboxgen/generator/spec"

// TokenKind is what a part of a template is.
type TokenKind string

// The kinds of tokens.
const (
	LiteralToken   TokenKind = "string"
	FieldToken     TokenKind = "property"
	SeparatorToken TokenKind = "operator"
)

// TokenKinds returns all kinds, in an order that does not change.
func TokenKinds() []TokenKind { return []TokenKind{LiteralToken, FieldToken, SeparatorToken} }

// Token is a part of a template. It is on one line.
type Token struct {
	Range Range
	Kind  TokenKind
}

// Tokens returns the parts of all templates, in the order of the text. A field that does not exist has no token.
func (d *Document) Tokens() []Token {
	var tokens []Token
	r := d.check()
	r.tree.walk(func(n *node) {
		refers := slotOf(n).Refers
		if n.kind != scalar || refers != spec.Template && refers != spec.LimitKey || n.quote == '|' || n.quote == '>' ||
			d.oneLine(n.value) != n.value.end {
			return
		}
		names := placeholders(d.text, n)
		if len(names) == 0 {
			return
		}
		inner, owner := n.inner(), ownerOf(n)
		add := func(s span, kind TokenKind) {
			if s.end > s.start {
				tokens = append(tokens, Token{d.rangeOf(s), kind})
			}
		}
		literal := inner.start
		for at := inner.start; at < inner.end; at++ {
			switch {
			case len(names) > 0 && at == names[0].start-1:
				add(span{literal, at}, LiteralToken)
				add(span{at, at + 1}, SeparatorToken)
				if r.index.symbols[idOf(spec.FieldThing, owner, d.of(names[0]))] != nil {
					add(names[0], FieldToken)
				}
				at = names[0].end
				add(span{at, at + 1}, SeparatorToken)
				literal, names = at+1, names[1:]
			case d.src[at] == '/':
				add(span{literal, at}, LiteralToken)
				add(span{at, at + 1}, SeparatorToken)
				literal = at + 1
			}
		}
		add(span{literal, inner.end}, LiteralToken)
	})
	return tokens
}
