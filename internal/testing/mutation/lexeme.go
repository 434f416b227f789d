package main

import "strings"

// lexeme is a word, number, string or operator of SQL, with its place in the text. Comments and spaces are no tokens.
type lexeme struct {
	kind       kind
	text       string
	start, end int
}

type kind int

const (
	word kind = iota
	number
	quoted // a string, or a name in double quotes
	sign   // an operator, a bracket, a parameter or the $$ around the body of a function
)

// is reports whether t is this keyword or sign, whatever its case.
func (t lexeme) is(text string) bool { return t.kind != quoted && strings.EqualFold(t.text, text) }

// longSigns are the operators of more than one character, the longest first.
var longSigns = []string{"!~", "->>", "->", "<=", ">=", "<>", "!=", "||", "::", ":=", "=>", "<<", ">>", "..", "@>", "$$"}

// tokens splits SQL. The body of a function, between two $$, is split too.
func tokens(sql string) []lexeme {
	var all []lexeme
	for i := 0; i < len(sql); {
		start := i
		switch c := sql[i]; {
		case c == ' ' || c == '\n' || c == '\t':
			i++
			continue
		case strings.HasPrefix(sql[i:], "--"):
			if n := strings.IndexByte(sql[i:], '\n'); n >= 0 {
				i += n
			} else {
				i = len(sql)
			}
			continue
		case c == '\'' || c == '"':
			for i++; i < len(sql); i++ {
				if sql[i] == c {
					if i+1 < len(sql) && sql[i+1] == c {
						i++
						continue
					}
					break
				}
			}
			i++
			all = append(all, lexeme{quoted, sql[start:i], start, i})
			continue
		case isLetter(c):
			for i < len(sql) && (isLetter(sql[i]) || isDigit(sql[i])) {
				i++
			}
			all = append(all, lexeme{word, sql[start:i], start, i})
			continue
		case isDigit(c):
			for i < len(sql) && (isDigit(sql[i]) || sql[i] == '.' && i+1 < len(sql) && isDigit(sql[i+1])) {
				i++
			}
			all = append(all, lexeme{number, sql[start:i], start, i})
			continue
		case c == '$' && i+1 < len(sql) && isDigit(sql[i+1]):
			for i++; i < len(sql) && isDigit(sql[i]); i++ {
			}
		default:
			i++
			for _, long := range longSigns {
				if strings.HasPrefix(sql[start:], long) {
					i = start + len(long)
					break
				}
			}
		}
		all = append(all, lexeme{sign, sql[start:i], start, i})
	}
	return all
}

func isLetter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// nesting is a list of tokens with the depth of each: brackets and CASE ... END open a level. A bracket itself, and CASE
// and END, have the depth of what is around them.
type nesting struct {
	sql    string
	tokens []lexeme
	depth  []int
}

func nest(sql string) nesting {
	n := nesting{sql: sql, tokens: tokens(sql)}
	var open []string
	for _, t := range n.tokens {
		switch {
		case t.is("(") || t.is("["):
			n.depth = append(n.depth, len(open))
			open = append(open, t.text)
			continue
		case t.is("case"):
			n.depth = append(n.depth, len(open))
			open = append(open, "case")
			continue
		case t.is(")") || t.is("]"), t.is("end") && len(open) > 0 && open[len(open)-1] == "case":
			if len(open) > 0 {
				open = open[:len(open)-1]
			}
		}
		n.depth = append(n.depth, len(open))
	}
	return n
}

// at returns the token i, or an empty one.
func (n nesting) at(i int) lexeme {
	if i < 0 || i >= len(n.tokens) {
		return lexeme{kind: sign}
	}
	return n.tokens[i]
}

// until returns the first token from i on, of the depth of i, that stops, or the bracket that closes it, or the end.
func (n nesting) until(i int, stops func(j int) bool) int {
	depth := n.depth[i]
	for j := i; j < len(n.tokens); j++ {
		if n.depth[j] < depth || n.depth[j] == depth && (stops(j) || n.tokens[j].is(";") || n.tokens[j].is("$$")) {
			return j
		}
	}
	return len(n.tokens)
}

// since returns the token behind the last one before i, of the depth of i, that stops, or behind the bracket that opens it.
func (n nesting) since(i int, stops func(j int) bool) int {
	depth := n.depth[i]
	for j := i; j >= 0; j-- {
		if n.depth[j] < depth || n.depth[j] == depth && (stops(j) || n.tokens[j].is(";") || n.tokens[j].is("$$")) {
			return j + 1
		}
	}
	return 0
}

// oneOf reports whether token j is one of the words.
func (n nesting) oneOf(j int, words ...string) bool {
	for _, w := range words {
		if n.at(j).is(w) {
			return true
		}
	}
	return false
}
