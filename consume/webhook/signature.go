package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of Standard Webhooks
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
)

// verifier checks the signatures and times of requests.
type verifier struct {
	keys      [][]byte
	tolerance time.Duration
	unsigned  bool
}

// verify checks a request that arrived at now. It takes the same time whichever part of a signature is wrong.
func (v verifier) verify(header http.Header, body []byte, now time.Time) error {
	if v.unsigned {
		return nil
	}
	id, timestamp, signatures := header[headerID], header[headerTimestamp], header[headerSignature]
	for _, h := range [...]struct {
		name   string
		values []string
	}{{headerID, id}, {headerTimestamp, timestamp}} {
		switch {
		case len(h.values) == 0 || h.values[0] == "":
			return fmt.Errorf("header %s is missing", strings.ToLower(h.name))
		case len(h.values) > 1:
			return fmt.Errorf("header %s is there %d times", strings.ToLower(h.name), len(h.values))
		}
	}
	if len(signatures) == 0 {
		return errors.New("header webhook-signature is missing: the sender must sign")
	}
	if !v.signed(id[0], timestamp[0], body, strings.Join(signatures, " ")) {
		return errors.New("no signature in webhook-signature matches a secret of the receiver")
	}
	return v.recent(timestamp[0], now)
}

// signed reports whether one of signatures, which are separated by spaces, was made with one of the keys. Signatures of
// other versions than v1 are ignored.
func (v verifier) signed(id, timestamp string, body []byte, signatures string) bool {
	wanted := make([][]byte, len(v.keys))
	for i, key := range v.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		wanted[i] = mac.Sum(nil)
	}
	matches := false
	for one := range strings.FieldsSeq(signatures) {
		version, encoded, _ := strings.Cut(one, ",")
		if version != "v1" {
			continue
		}
		signature, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			continue
		}
		for _, want := range wanted {
			if hmac.Equal(signature, want) {
				matches = true
			}
		}
	}
	return matches
}

// recent checks the time of a request, seconds since 1970. It tells the sender the difference, so that a wrong clock is
// easy to find. The signature has been checked before, so only the sender learns it.
func (v verifier) recent(timestamp string, now time.Time) error {
	seconds, err := strconv.ParseUint(timestamp, 10, 62)
	if err != nil {
		return errors.New("webhook-timestamp is not a number of seconds")
	}
	const most = 1 << 33 // seconds: more than any true time, and few enough for a Duration
	age := now.Sub(time.Unix(int64(min(seconds, most)), 0))
	switch {
	case age > v.tolerance:
		return fmt.Errorf("webhook-timestamp is %s old by the receiver's clock, at most %s allowed", age.Round(time.Second),
			v.tolerance)
	case -age > v.tolerance:
		return fmt.Errorf("webhook-timestamp is %s in the future by the receiver's clock, at most %s allowed",
			(-age).Round(time.Second), v.tolerance)
	}
	return nil
}
