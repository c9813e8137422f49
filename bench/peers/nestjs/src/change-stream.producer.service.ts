import { ServiceBusClient, ServiceBusMessage, ServiceBusSender } from '@azure/service-bus';
import { Inject, Injectable, Logger, OnModuleDestroy, OnModuleInit } from '@nestjs/common';
import { Cron, CronExpression } from '@nestjs/schedule';
import { ChangeStream, ChangeStreamInsertDocument, Db, ResumeToken } from 'mongodb';

import { DATABASE, SERVICE_BUS } from './clients.js';
import { LeaderElectionService } from './leader-election.service.js';
import { settings } from './settings.js';

type Change = ChangeStreamInsertDocument<{ aggregateId: string; version: number; type: string }>;

const TOKEN_KEY = 'changeStreamPublisher';
/** Tuned: changes that are published side by side. */
const BATCH = 1_000;

/** Publishes the change stream while this instance leads, and stores the resume token after what it published. */
@Injectable()
export class ChangeStreamProducerService implements OnModuleInit, OnModuleDestroy {
  private readonly logger = new Logger(ChangeStreamProducerService.name);
  private readonly sender: ServiceBusSender;
  private changeStream?: ChangeStream<any, Change>;

  constructor(
    @Inject(DATABASE) private readonly database: Db,
    @Inject(SERVICE_BUS) serviceBus: ServiceBusClient,
    private readonly election: LeaderElectionService,
  ) {
    this.sender = serviceBus.createSender(settings.topic);
  }

  onModuleInit() {
    this.handleLeadershipStatusChange();
  }

  async onModuleDestroy() {
    await this.changeStream?.close();
  }

  @Cron(CronExpression.EVERY_5_SECONDS)
  handleLeadershipStatusChange() {
    const running = this.changeStream && !this.changeStream.closed;
    if (this.election.isLeader && !running) void this.watch();
    if (!this.election.isLeader && running) void this.changeStream?.close();
  }

  private async watch() {
    const resumeAfter = await this.loadResumeToken();
    const options = { ...(resumeAfter ? { resumeAfter } : {}), ...(settings.tuned ? { batchSize: BATCH } : {}) };
    const stream = this.database.collection('events').watch<any, Change>([{ $match: { operationType: 'insert' } }], options);
    this.changeStream = stream;
    try {
      // The server has the stream's start only after the first answer.
      const first = await stream.tryNext();
      this.logger.log(`Instance ${this.election.instanceId} successfully started ChangeStream.`);
      if (first) await this.publish([first]);
      while (this.election.isLeader) {
        const next = settings.tuned ? await this.nextBatch(stream) : [await stream.next()];
        await this.publish(next);
      }
    } catch (error) {
      if (!stream.closed) this.logger.error(`MongoDB ChangeStream error: ${(error as Error).message}`);
    }
    await stream.close();
  }

  /** What the driver has read already, or the next change. */
  private async nextBatch(stream: ChangeStream<any, Change>): Promise<Change[]> {
    const changes = [await stream.next()];
    while (changes.length < BATCH) {
      const change = await stream.tryNext();
      if (!change) break;
      changes.push(change);
    }
    return changes;
  }

  private async publish(changes: Change[]) {
    const sessions = new Map<string, ServiceBusMessage[]>();
    for (const change of changes) {
      const session = change.fullDocument.aggregateId;
      const messages = sessions.get(session) ?? [];
      messages.push(message(change));
      sessions.set(session, messages);
    }
    // A batch may not mix sessions on a partitioned topic.
    await Promise.all([...sessions.values()].map((messages) => this.sender.sendMessages(messages)));
    await this.saveResumeToken(changes[changes.length - 1]._id);
  }

  private async loadResumeToken(): Promise<ResumeToken> {
    const stored = await this.tokens.findOne({ _id: TOKEN_KEY });
    return stored?.token;
  }

  private async saveResumeToken(token: ResumeToken) {
    await this.tokens.updateOne({ _id: TOKEN_KEY }, { $set: { token, savedAt: new Date() } }, { upsert: true });
  }

  private get tokens() {
    return this.database.collection<{ _id: string; token: ResumeToken; savedAt: Date }>('resume_tokens');
  }
}

function message({ _id, fullDocument }: Change): ServiceBusMessage {
  const { aggregateId } = fullDocument;
  return {
    // The data of a token is longer than a message id may be; its end is what tells events apart.
    messageId: String((_id as { _data: string })._data).slice(-128),
    sessionId: aggregateId,
    partitionKey: aggregateId,
    subject: fullDocument.type,
    body: fullDocument,
  };
}
