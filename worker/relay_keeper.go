package worker

import (
	"context"

	"subjectbroker/proto/wire"
)

// relayKey names one relay of a keeper.
type relayKey struct {
	server string
	mode   RelayMode
}

// relaySlot is the place of one relay. The channel, of capacity 1, is held by
// whoever opens another.
type relaySlot struct {
	opening chan struct{}
	relay   *Relay
}

// Relay returns the open relay for a server and mode. When there is none, or it
// has ended, another is opened under the open run; see Fresh for how that is had:
// a relay is told by itself what changes.
// The callbacks of config are those of the relay that it opens: they stay until
// that ends, whoever asks next.
func (k *Keeper) Relay(ctx context.Context, config RelayConfig) (*Relay, error) {
	slot := k.slot(relayKey{config.Server, config.Mode})
	select {
	case slot.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, wire.FromError(ctx.Err())
	}
	defer func() { <-slot.opening }()
	if slot.relay != nil {
		select {
		case <-slot.relay.Over():
		default:
			return slot.relay, nil
		}
	}
	run, err := k.Fresh(ctx)
	if err != nil {
		return nil, err
	}
	relay, err := run.Relay(ctx, config)
	if err != nil {
		return nil, err
	}
	slot.relay = relay
	return relay, nil
}

// OpenRelay returns the relay that Relay would return without waiting; nil: there is
// none.
func (k *Keeper) OpenRelay(config RelayConfig) *Relay {
	slot := k.slot(relayKey{config.Server, config.Mode})
	if !holdNow(slot.opening) {
		return nil
	}
	defer func() { <-slot.opening }()
	if slot.relay == nil || slot.relay.Err() != nil {
		return nil
	}
	return slot.relay
}

func (k *Keeper) slot(key relayKey) *relaySlot {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.relays == nil {
		k.relays = map[relayKey]*relaySlot{}
	}
	slot := k.relays[key]
	if slot == nil {
		slot = &relaySlot{opening: make(chan struct{}, 1)}
		k.relays[key] = slot
	}
	return slot
}
