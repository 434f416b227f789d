package model

import (
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCamel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"turn_finalized": "TurnFinalized",
		"turn_id":        "TurnID",
		"id":             "ID",
		"url":            "URL",
		"user_ids":       "UserIDs",
		"http_api_json":  "HTTPAPIJSON",
		"sql_ip_html":    "SQLIPHTML",
		"uri":            "URI",
		"uuid":           "UUID",
		"identity":       "Identity",
		"x1":             "X1",
		"a__b_":          "AB",
		"utf8":           "UTF8",
		"in-progress":    "InProgress",
		"INVOICE_PAID":   "InvoicePaid",
		"inProgress":     "InProgress",
		"v1.2":           "V12",
		"2fa":            "2fa",
	} {
		require.Equal(t, want, camel(name), name)
	}
}

func TestSnake(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"TurnFinalized": "turn_finalized",
		"SeenURL":       "seen_url",
		"A":             "a",
		"AB":            "ab",
		"Oauth2Done":    "oauth2_done",
		"TurnID":        "turn_id",
		"UserIDs":       "user_ids",
		"URLSeen":       "url_seen",
		"tenantID":      "tenant_id",
		"mini-chat":     "mini_chat",
		"Chat Turn":     "chat_turn",
		"turn_id":       "turn_id",
		"v2Beta":        "v2_beta",
		"Turn_ID":       "turn_id",
		"":              "",
	} {
		require.Equal(t, want, Snake(name), name)
	}
}

// Every name that is accepted becomes an exported Go identifier.
func TestCamelMakesExportedIdentifiers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(namePattern.String()).Draw(t, "name")
		require.True(t, token.IsExported(camel(name)), camel(name))
		require.True(t, token.IsIdentifier(camel(name)), camel(name))
		value := rapid.StringMatching(enumPattern.String()).Draw(t, "value")
		require.True(t, token.IsIdentifier("Outcome"+camel(value)), camel(value))
	})
}

func TestValidNameIsThePattern(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9_é-]{0,3}[a-z0-9_]{0,45}`), rapid.String()).Draw(t, "name")
		require.Equal(t, namePattern.MatchString(name), ValidName(name))
	})
}

func TestReservedWordsAreLowerCaseNames(t *testing.T) {
	t.Parallel()
	for _, set := range []map[string]bool{sqlReserved, initialisms} {
		require.NotEmpty(t, set)
		for word := range set {
			require.Equal(t, strings.ToLower(word), word)
			require.Regexp(t, namePattern, word)
		}
	}
	for _, word := range []string{"select", "user", "table", "all", "left", "analyze"} {
		require.True(t, sqlReserved[word], word)
	}
	for _, word := range []string{"outbox", "events", "public", "data", "type", "id", "value"} {
		require.False(t, sqlReserved[word], word)
	}
}
