package keysource

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/zalando/go-keyring"
)

// Child is the main function of the process that a Keychain starts: it reads one request, makes one call to the keychain,
// writes one reply and returns the exit code. It may hang or panic; that is what the process is for.
func Child(stdin io.Reader, stdout io.Writer) int {
	harden()
	var req request
	dec := json.NewDecoder(io.LimitReader(stdin, maxReply))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return 2
	}
	// A parent that dies does not kill us. Neither may we wait for ever then.
	if req.Timeout > 0 {
		time.AfterFunc(req.Timeout+killDelay, func() { os.Exit(1) }) //nolint:forbidigo // whatever hangs, this process ends
	}
	if err := json.NewEncoder(stdout).Encode(serve(req)); err != nil {
		return 1
	}
	return 0
}

func serve(req request) reply {
	var err error
	var item string
	switch req.Op {
	case opGet:
		item, err = keyring.Get(Service, req.Account)
	case opSet:
		err = keyring.Set(Service, req.Account, encodeItem(req.Key))
	case opRemove:
		err = keyring.Delete(Service, req.Account)
	default:
		err = errors.New("unknown request")
	}
	switch {
	case errors.Is(err, keyring.ErrNotFound):
		return reply{Status: statusNotFound}
	case err != nil:
		return reply{Status: statusUnavailable, Reason: err.Error()}
	case req.Op == opGet:
		return reply{Status: statusOK, Key: decodeItem(item)}
	}
	return reply{Status: statusOK}
}
