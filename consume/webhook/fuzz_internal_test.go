package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzVerify: a request is accepted only if one of its signatures is the HMAC of what was sent, and only in the window.
// An error is one line and quotes nothing.
func FuzzVerify(f *testing.F) {
	key := []byte("0123456789abcdef0123456789abcdef")
	sign := func(id, timestamp string, body []byte) string {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		return base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	now := time.Unix(1_700_000_000, 0)
	good := strconv.FormatInt(now.Unix(), 10)
	f.Add("msg_1", good, "v1,"+sign("msg_1", good, []byte("{}")), []byte("{}"))
	f.Add("msg_1", good, "v1a,x v1,"+sign("msg_1", good, []byte("{}"))+" v1,", []byte("{}"))
	f.Add("a.b", "99999999999999999999", "v1", []byte(nil))
	f.Add("", "-1", "v1,=\n v1,", []byte{0})
	f.Add("id\r\nX: y", "1_700", " , ,, ", []byte("."))
	v := verifier{keys: [][]byte{[]byte("another key, which is older than the other"), key}, tolerance: 5 * time.Minute}
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		header := http.Header{headerID: {id}, headerTimestamp: {timestamp}, headerSignature: {signature}}
		err := v.verify(header, body, now)
		if err == nil {
			require.Contains(t, signature, sign(id, timestamp, body)[:40])
			seconds, bad := strconv.ParseInt(timestamp, 10, 64)
			require.NoError(t, bad)
			require.InDelta(t, now.Unix(), seconds, 300)
			return
		}
		require.Less(t, len(err.Error()), 150)
		require.NotContains(t, err.Error(), "\n")
		// The same request with its signature is accepted if its time is one, and refused with another body.
		header[headerSignature] = []string{signature + " v1," + sign(id, timestamp, body)}
		seconds, bad := strconv.ParseUint(timestamp, 10, 32)
		if err := v.verify(header, body, now); id != "" && bad == nil && now.Unix()-300 <= int64(seconds) && int64(seconds) <= now.Unix()+300 {
			require.NoError(t, err)
		} else {
			require.Error(t, err)
		}
		require.Error(t, v.verify(header, append(body, '!'), now))
	})
}
