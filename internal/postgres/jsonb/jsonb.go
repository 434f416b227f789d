// Package jsonb finds what PostgreSQL's type jsonb would refuse, before anything is sent: an error of PostgreSQL would
// abort the caller's transaction.
package jsonb

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/payload"
)

// MaxBytes bounds an encoded payload, and by how much its numbers may grow when jsonb writes them out.
const MaxBytes = 1 << 20

// ErrTooLarge: text exceeds MaxBytes, or would.
var ErrTooLarge = errors.New("payload too large")

// Bounds of what jsonb takes, measured on PostgreSQL 15: numbers are numeric, which ends at 131072
// digits before the point and 16383 after it, and values nest as deep as max_stack_depth allows, of
// whose default of 2 MB a thousand levels are a small part.
const (
	maxDepth       = 1000
	maxIntDigits   = 131072
	maxFracDigits  = 16383
	maxExponentLen = 6 // digits of an exponent that is worth computing
)

// Check reports why jsonb would refuse text, or nil. The error wraps payload.ErrInvalid or ErrTooLarge, and never
// quotes the text.
func Check(text []byte) error {
	if !json.Valid(text) {
		return fmt.Errorf("is not one valid JSON value: %w", payload.ErrInvalid)
	}
	return CheckValid(text)
}

// CheckValid is Check for text that is known to be valid JSON: finding that out takes longer than everything else.
func CheckValid(text []byte) error {
	if !utf8.Valid(text) {
		return fmt.Errorf("is not UTF-8: %w", payload.ErrInvalid)
	}
	depth, grown := 0, 0
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			end, err := checkString(text, i)
			if err != nil {
				return err
			}
			i = end
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return fmt.Errorf("nests deeper than %d levels: %w", maxDepth, payload.ErrInvalid)
			}
			i++
		case c == ']' || c == '}':
			depth--
			i++
		case c == '-' || c >= '0' && c <= '9':
			end, digits, ok := checkNumber(text, i)
			if !ok {
				return fmt.Errorf("holds a number at byte %d that is out of jsonb's range: %w", i, payload.ErrInvalid)
			}
			if grown += max(digits-(end-i), 0); grown > MaxBytes {
				return fmt.Errorf("grows by more than %d bytes when its numbers are written out: %w", MaxBytes, ErrTooLarge)
			}
			i = end
		default:
			i++
		}
	}
	return nil
}

// checkString checks the escapes of the string that starts at text[i], and returns where it ends.
func checkString(text []byte, i int) (int, error) {
	for i++; text[i] != '"'; {
		if text[i] != '\\' {
			i++
			continue
		}
		if text[i+1] != 'u' {
			i += 2
			continue
		}
		r := escaped(text[i+2:])
		switch {
		case r == 0:
			return 0, fmt.Errorf("holds \\u0000 at byte %d, which jsonb cannot: %w", i, payload.ErrInvalid)
		case utf16.IsSurrogate(r):
			paired := i+12 <= len(text) && text[i+6] == '\\' && text[i+7] == 'u' &&
				utf16.DecodeRune(r, escaped(text[i+8:])) != utf8.RuneError
			if !paired {
				return 0, fmt.Errorf("holds half a surrogate pair at byte %d: %w", i, payload.ErrInvalid)
			}
			i += 12
		default:
			i += 6
		}
	}
	return i + 1, nil
}

// escaped returns the code unit of four hexadecimal digits, known to be there.
func escaped(digits []byte) rune {
	var r rune
	for _, c := range digits[:4] {
		switch {
		case c >= 'a':
			c = c - 'a' + 10
		case c >= 'A':
			c = c - 'A' + 10
		default:
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}

// checkNumber checks the number that starts at text[i], known to be well-formed, and returns where it ends
// and how many digits jsonb writes it with: it knows no exponents, so that a few bytes may become 131072.
func checkNumber(text []byte, i int) (end, written int, ok bool) {
	if text[i] == '-' {
		i++
	}
	digits := func() int {
		from := i
		for i < len(text) && text[i] >= '0' && text[i] <= '9' {
			i++
		}
		return i - from
	}
	integer, fraction, exponent := digits(), 0, 0
	if i < len(text) && text[i] == '.' {
		i++
		fraction = digits()
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		i++
		negative := text[i] == '-'
		if negative || text[i] == '+' {
			i++
		}
		for ; i < len(text) && text[i] == '0'; i++ {
		}
		from := i
		if digits() > maxExponentLen {
			return i, 0, false
		}
		for _, c := range text[from:i] {
			exponent = exponent*10 + int(c-'0')
		}
		if negative {
			exponent = -exponent
		}
	}
	before, after := integer+exponent, fraction-exponent
	return i, max(before, 1) + max(after, 0), before <= maxIntDigits && after <= maxFracDigits
}
