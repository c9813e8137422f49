import { Inject, Injectable, Logger, OnModuleDestroy, OnModuleInit } from '@nestjs/common';
import { Cron, CronExpression } from '@nestjs/schedule';
import { Db } from 'mongodb';

import { DATABASE } from './clients.js';

interface Lease {
  _id: string;
  leaderId: string;
  expiresAt: Date;
  heartbeatAt: Date;
}

const LEASE_KEY = 'changeStreamPublisher';
const LEASE_TTL_MS = 15_000;

/** The lease of the notes: taken or renewed every five seconds by the client's clock, with a TTL index, deleted on release. */
@Injectable()
export class LeaderElectionService implements OnModuleInit, OnModuleDestroy {
  readonly instanceId = process.env.HOSTNAME ?? `instance-${Math.random().toString(36).substring(7)}`;
  private readonly logger = new Logger(LeaderElectionService.name);
  private isCurrentLeader = false;

  constructor(@Inject(DATABASE) private readonly database: Db) {}

  get isLeader(): boolean {
    return this.isCurrentLeader;
  }

  async onModuleInit() {
    await this.leases.createIndex({ expiresAt: 1 }, { expireAfterSeconds: 0 });
    await this.elect();
  }

  async onModuleDestroy() {
    if (!this.isCurrentLeader) return;
    this.isCurrentLeader = false;
    await this.leases.deleteOne({ _id: LEASE_KEY, leaderId: this.instanceId });
    this.logger.log(`Instance ${this.instanceId} released leadership.`);
  }

  @Cron(CronExpression.EVERY_5_SECONDS)
  async elect() {
    const was = this.isCurrentLeader;
    try {
      const now = new Date();
      const lease = await this.leases.findOneAndUpdate(
        { _id: LEASE_KEY, $or: [{ leaderId: this.instanceId }, { expiresAt: { $lt: now } }] },
        { $set: { leaderId: this.instanceId, expiresAt: new Date(now.getTime() + LEASE_TTL_MS), heartbeatAt: now } },
        { upsert: true, returnDocument: 'after' },
      );
      this.isCurrentLeader = lease?.leaderId === this.instanceId;
    } catch {
      // A standby's upsert fails with a duplicate key on every poll, as in the notes.
      this.isCurrentLeader = false;
    }
    if (was !== this.isCurrentLeader) {
      this.logger.log(`Instance ${this.instanceId} ${was ? 'has lost leadership.' : 'has become the leader.'}`);
    }
  }

  private get leases() {
    return this.database.collection<Lease>('leader_leases');
  }
}
