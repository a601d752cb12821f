package daemon_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P65: a stop at any moment, while clients read, the operator changes things,
// panics and takes it back, and keys are rotated, ends with exit 0; log and
// vault are whole, and whatever was acknowledged is in them.
func TestStoppedUnderLoad(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		var busy sync.WaitGroup
		var newest uint32 // version of readme that was acknowledged
		for range 3 {
			broker := d.Broker()
			busy.Go(func() {
				for ctx.Err() == nil {
					opened, err := broker.OpenRun(ctx, daemontest.Claim("worker"))
					if daemontest.Reason(err) == wire.BrokerUnavailable {
						return
					}
					_, _ = broker.Acquire(ctx, acquire(&daemontest.Run{ID: opened.GetRunId()}, "readme"))
				}
			})
		}
		op := d.Operator()
		enabled := true
		busy.Go(func() {
			for ctx.Err() == nil {
				done, err := op.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "readme", Kind: "text", Content: []byte("hello again")})
				if err == nil {
					newest = done.GetResource().GetVersion()
				} else if daemontest.Reason(err) == wire.BrokerUnavailable {
					return
				}
			}
		})
		busy.Go(func() {
			for ctx.Err() == nil {
				for _, err := range []error{
					second(op.RotateKey(ctx, &operatorv1.RotateKeyRequest{})),
					second(op.Panic(ctx, &operatorv1.PanicRequest{})),
					second(op.Unlock(ctx, &operatorv1.UnlockRequest{})),
					second(op.SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: "worker", Enabled: &enabled})),
				} {
					if daemontest.Reason(err) == wire.BrokerUnavailable {
						return
					}
				}
			}
		})
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		equal(t, "exit code", d.Stop(), wire.ExitDone)
		cancel()
		busy.Wait()
		d.Verify()
		d.Start()
		_, _ = d.Operator().Unlock(t.Context(), &operatorv1.UnlockRequest{})
		got, err := d.Operator().GetResource(t.Context(), &operatorv1.GetResourceRequest{Name: "readme"})
		must(t, err)
		if kept := got.GetResource().GetVersion(); kept < newest {
			t.Errorf("version %d was acknowledged, %d is kept", newest, kept)
		}
	}
}
