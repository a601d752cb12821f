package main

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// fakeKeys are the keys and backups of a fake operator: slots that compare, and
// backups in clear.
type fakeKeys struct {
	term      uint32
	slots     []*operatorv1.KeySlot
	secrets   map[string][]byte // of a passphrase; public key of a recovery code
	rewrap    uint64            // rows left
	stuck     string            // why rewrapping stands still
	backups   []*operatorv1.BackupInfo
	headCause string
	headSeq   uint64
	pruned    []*operatorv1.SegmentCopy
}

func newFakeKeys() *fakeKeys {
	return &fakeKeys{term: 1, slots: []*operatorv1.KeySlot{{Name: "1.file", Kind: "file"}}, secrets: map[string][]byte{}}
}

func (k *fakeKeys) slot(kind string) *operatorv1.KeySlot {
	for _, s := range k.slots {
		if s.GetKind() == kind {
			return s
		}
	}
	return nil
}

// opens says whether secret opens the slot of a kind.
func (k *fakeKeys) opens(kind string, secret []byte) error {
	if k.slot(kind) == nil {
		return invalid("", "there is no slot %s", kind)
	}
	if kind == "recovery" {
		private, err := ecdh.X25519().NewPrivateKey(secret)
		if err != nil {
			return invalid("", "%v", err)
		}
		secret = private.PublicKey().Bytes()
	}
	if !bytes.Equal(secret, k.secrets[kind]) {
		return &wire.Error{Reason: wire.WrongKey, Message: "the key does not open the vault"}
	}
	return nil
}

func (f *fakeOperator) ShowKeys(context.Context, *operatorv1.ShowKeysRequest) (*operatorv1.ShowKeysResponse, error) {
	k := f.keys
	response := &operatorv1.ShowKeysResponse{
		VaultId: "00112233445566778899aabbccddeeff", Schema: 2, Term: k.term, Slots: k.slots, UnlockedBy: "file", Memory: "memfd_secret",
	}
	if k.rewrap > 0 {
		response.RewrapTotal, response.RewrapDone, response.RewrapCause = 3, 3-k.rewrap, k.stuck
		response.OldTerms = []uint32{k.term - 1}
		if k.stuck == "" {
			k.rewrap--
		}
	}
	return response, nil
}

func (f *fakeOperator) RotateKey(context.Context, *operatorv1.RotateKeyRequest) (*operatorv1.RotateKeyResponse, error) {
	f.keys.term++
	f.keys.rewrap = 2
	return &operatorv1.RotateKeyResponse{Term: f.keys.term, Rows: 3}, nil
}

func (f *fakeOperator) Rekey(context.Context, *operatorv1.RekeyRequest) (*operatorv1.RekeyResponse, error) {
	return &operatorv1.RekeyResponse{Slots: f.keys.slots}, nil
}

func (f *fakeOperator) AddSlot(_ context.Context, q *operatorv1.AddSlotRequest) (*operatorv1.AddSlotResponse, error) {
	k := f.keys
	have := k.slot(q.GetKind())
	if have != nil && q.GetKind() != "recovery" {
		return nil, invalid("", "there is a slot %s already", q.GetKind())
	}
	k.secrets[q.GetKind()] = slices.Clone(q.GetSecret())
	if have != nil {
		return &operatorv1.AddSlotResponse{Slot: have, Replaced: true}, nil
	}
	slot := &operatorv1.KeySlot{Name: fmt.Sprintf("%d.%s", len(k.slots)+1, q.GetKind()), Kind: q.GetKind()}
	k.slots = append(k.slots, slot)
	return &operatorv1.AddSlotResponse{Slot: slot}, nil
}

func (f *fakeOperator) TestSlot(_ context.Context, q *operatorv1.TestSlotRequest) (*operatorv1.TestSlotResponse, error) {
	if err := f.keys.opens(q.GetKind(), q.GetSecret()); err != nil {
		return nil, err
	}
	return &operatorv1.TestSlotResponse{Slot: f.keys.slot(q.GetKind())}, nil
}

func (f *fakeOperator) RemoveSlot(_ context.Context, q *operatorv1.RemoveSlotRequest) (*operatorv1.RemoveSlotResponse, error) {
	k := f.keys
	k.slots = slices.DeleteFunc(k.slots, func(s *operatorv1.KeySlot) bool { return s.GetKind() == q.GetKind() })
	return &operatorv1.RemoveSlotResponse{Slots: k.slots, Backups: k.backups, KeyLeft: q.GetKind() == "file"}, nil
}

// fakeBackup is what every backup of the fake holds.
const fakeBackup = "a sealed backup\n"

func (f *fakeOperator) Backup(q *operatorv1.BackupRequest, stream grpc.ServerStreamingServer[operatorv1.BackupResponse]) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refusal != nil {
		return f.refusal
	}
	info := &operatorv1.BackupInfo{
		Id: fmt.Sprintf("backup%c", 'a'+len(f.keys.backups)), Name: q.GetName(), Created: fakeNow, VaultId: "00112233445566778899aabbccddeeff",
		Generation: 7, Rows: 3, Seq: 42, Head: strings.Repeat("cd", 32), Genesis: strings.Repeat("ab", 32), Audit: !q.GetNoAudit(),
	}
	for _, kind := range []string{"passphrase", "recovery"} {
		if f.keys.slot(kind) != nil {
			info.Slots = append(info.Slots, kind)
		}
	}
	if len(info.Slots) == 0 {
		return &wire.Error{Reason: wire.InvalidArgument, Message: "nobody could open it", Hint: "sbctl key recovery new"}
	}
	if err := stream.Send(&operatorv1.BackupResponse{Total: uint64(len(fakeBackup)), Chunk: []byte(fakeBackup[:5])}); err != nil {
		return err
	}
	if strings.HasSuffix(q.GetName(), "-cut") {
		return nil
	}
	f.keys.backups = append([]*operatorv1.BackupInfo{info}, f.keys.backups...)
	return stream.Send(&operatorv1.BackupResponse{Chunk: []byte(fakeBackup[5:]), Info: info})
}

func (f *fakeOperator) VerifyBackup(stream grpc.ClientStreamingServer[operatorv1.VerifyBackupRequest, operatorv1.VerifyBackupResponse]) error {
	var file bytes.Buffer
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		file.Write(piece.GetChunk())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if file.String() != fakeBackup {
		return &wire.Error{Reason: wire.IntegrityFailed, Message: "chunk 0 does not open"}
	}
	return stream.SendAndClose(&operatorv1.VerifyBackupResponse{Info: f.keys.backups[0], Contents: 2, Entries: 42})
}

func (f *fakeOperator) ListBackups(context.Context, *operatorv1.ListBackupsRequest) (*operatorv1.ListBackupsResponse, error) {
	return &operatorv1.ListBackupsResponse{Backups: f.keys.backups}, nil
}

func (f *fakeOperator) PruneAudit(_ context.Context, q *operatorv1.PruneAuditRequest) (*operatorv1.PruneAuditResponse, error) {
	response := &operatorv1.PruneAuditResponse{}
	for _, c := range q.GetCopies() {
		response.Segments = append(response.Segments, &operatorv1.PrunedSegment{Segment: c.GetSegment(), First: 1, Last: 2, Bytes: 3000})
	}
	if !q.GetDryRun() {
		f.keys.pruned = q.GetCopies()
	}
	return response, nil
}
